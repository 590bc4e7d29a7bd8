//! The description of REST as a page to read: one file, no scripts, nothing from elsewhere.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// The page may show itself, and load and send nothing.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const STYLE: &str = "body{max-width:56rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff}\
code,pre{font:14px/1.45 ui-monospace,monospace}h2{margin-top:2.5rem;border-top:1px solid #ddd;padding-top:1rem}\
h3{margin-bottom:.2rem}table{border-collapse:collapse;width:100%}td{border-top:1px solid #eee;padding:.25rem .75rem .25rem 0;vertical-align:top}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}a{color:#8ab4f8}h2{border-color:#444}td{border-color:#333}}";

/// The page for a document. What is in it is our own, and escaped all the same.
pub(super) fn render(document: &Value) -> String {
    let info = &document["info"];
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title} {version}</h1><p>{about}</p>\
         <p>The same for programs: <a href=\"/openapi.json\">openapi.json</a></p>",
        title = escaped(text(&info["title"])),
        version = escaped(text(&info["version"])),
        about = escaped(text(&info["description"])),
    );
    for (path, methods) in entries(&document["paths"]) {
        for (method, operation) in entries(methods) {
            render_operation(&mut page, (path, method), operation);
        }
    }
    page.push_str("<h2>Objects</h2>");
    for (name, schema) in entries(&document["components"]["schemas"]) {
        render_schema(&mut page, name, schema);
    }
    page.push_str("</html>\n");
    page
}

// Writing to a String cannot fail, here and below.
fn render_operation(page: &mut String, (path, method): (&str, &str), operation: &Value) {
    let _ = write!(
        page,
        "<h2 id=\"{id}\"><code>{method} {path}</code></h2><p>{about}</p><table>",
        id = escaped(text(&operation["operationId"])),
        method = method.to_uppercase(),
        path = escaped(path),
        about = escaped(text(&operation["summary"])),
    );
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let _ = write!(
            page,
            "<tr><td><code>{}</code><td>in the {}<td>{}",
            escaped(text(&parameter["name"])),
            escaped(text(&parameter["in"])),
            escaped(text(&parameter["description"])),
        );
    }
    if let Some(body) = operation.get("requestBody") {
        let _ = write!(page, "<tr><td>body<td><td>{}", contents(body));
    }
    for (status, answer) in entries(&operation["responses"]) {
        let _ = write!(
            page,
            "<tr><td>{status}<td>{}<td>{}",
            contents(answer),
            escaped(text(&answer["description"])),
        );
    }
    page.push_str("</table>");
}

fn render_schema(page: &mut String, name: &str, schema: &Value) {
    let _ = write!(
        page,
        "<h3 id=\"{name}\">{name}</h3><p>{}</p><table>",
        escaped(text(&schema["description"])),
        name = escaped(name),
    );
    for (property, about) in entries(&schema["properties"]) {
        let _ = write!(
            page,
            "<tr><td><code>{}</code><td>{}<td>{}",
            escaped(property),
            kind(about),
            escaped(text(&about["description"])),
        );
    }
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        let _ = write!(
            page,
            "<tr><td><code>{}</code><td><td>{}",
            escaped(text(&variant["const"])),
            escaped(text(&variant["description"])),
        );
    }
    page.push_str("</table>");
}

/// What a body holds.
fn contents(body: &Value) -> String {
    let kinds = entries(&body["content"]).map(|(name, content)| {
        let schema = kind(&content["schema"]);
        format!("{} {schema}", escaped(name))
    });
    kinds.collect::<Vec<_>>().join("<br>")
}

/// A schema in a few words, with a link where it has a name.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escaped(reference.rsplit('/').next().unwrap_or_default());
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    let of_several = ["anyOf", "oneOf"]
        .into_iter()
        .find_map(|key| schema[key].as_array());
    if let Some(several) = of_several {
        let kinds: Vec<String> = several.iter().map(kind).collect();
        return kinds.join(" or ");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => escaped(name),
        Value::Array(names) => {
            let names: Vec<String> = names.iter().map(|name| escaped(text(name))).collect();
            names.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = value.as_object().into_iter().flat_map(Map::iter);
    entries.map(|(name, value)| (name.as_str(), value))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::openapi::document;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_shows_every_operation() {
        let document = document();
        let page = render(&document);
        for (path, methods) in entries(&document["paths"]) {
            for (method, _) in entries(methods) {
                let heading = format!("<code>{} {path}</code>", method.to_uppercase());
                assert!(page.contains(&heading), "{heading}");
            }
        }
        for foreign in ["<script", "http://", "https://", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        // Every link leads somewhere.
        for link in page.split("href=\"#").skip(1) {
            let target = link.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
        }
    }

    #[test]
    fn nothing_in_a_document_becomes_markup() {
        let evil = serde_json::json!({"info": {"title": "<script>\"&"}, "paths": {}});
        assert!(!render(&evil).contains("<script>"));
    }
}
