//! The arrows between modules point down: see the code map in ARCHITECTURE.md.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Modules from the top of the program to its bottom. Those on one row may not use each other,
/// except that `runner` has the wire types that `engine` and `bridge` share.
const ROWS: [&[&str]; 14] = [
    &["main", "lib"],
    &["cli"],
    &["http"],
    &["mcp", "rest"],
    &["web"],
    &["service"],
    &["session", "environments"],
    &["bridge", "turn"],
    &["runner", "engine", "audit", "store", "servers"],
    &["identity", "telemetry"],
    &["config"],
    &["policy", "packages"],
    &["limits", "liveness", "text", "names"],
    &["lock"],
];

/// Uses that the rows alone would forbid, with the reason.
const EXCEPTIONS: [(&str, &str, &str); 3] = [
    (
        "bridge",
        "turn",
        "implements the trait `Tools` that the turn declares",
    ),
    (
        "engine",
        "runner",
        "carries the runner's source into a sandbox",
    ),
    (
        "runner",
        "engine",
        "speaks over the byte stream that an engine yields",
    ),
];

#[test]
fn every_use_points_down() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut uses = 0;
    for file in rust_files(&source) {
        let module = module_of(file.strip_prefix(&source).unwrap());
        let text = fs::read_to_string(&file).unwrap();
        // Tests at a file's end may look anywhere.
        let code = text.split("#[cfg(test)]").next().unwrap();
        for used in used_modules(code) {
            uses += 1;
            if used != module && !allowed(&module, &used) {
                wrong.push(format!("{} uses crate::{used}", file.display()));
            }
        }
    }
    assert!(uses > 50, "the reader of `use` lines found only {uses}");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn an_arrow_that_points_up_is_seen() {
    assert_eq!(used_modules("use crate::service::Service;\n"), ["service"]);
    assert_eq!(
        used_modules("use crate::{\n    engine::{Engine, native},\n    turn,\n};\n"),
        ["engine", "turn"]
    );
    assert!(!allowed("engine", "service"));
    assert!(!allowed("turn", "bridge"));
    assert!(!allowed("service", "mcp"));
    assert!(allowed("service", "engine"));
}

fn allowed(from: &str, to: &str) -> bool {
    let row = |module: &str| ROWS.iter().position(|row| row.contains(&module));
    let (Some(above), Some(below)) = (row(from), row(to)) else {
        return false;
    };
    above < below
        || EXCEPTIONS
            .iter()
            .any(|(user, used, _)| (*user, *used) == (from, to))
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn module_of(relative: &Path) -> String {
    let first = relative.components().next().unwrap().as_os_str();
    first.to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The first name after `crate::` of every path, those in a brace list included.
fn used_modules(code: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => modules.extend(first_names(list)),
            None => modules.push(first_name(rest)),
        }
    }
    modules.retain(|module| !module.is_empty());
    modules
}

fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut start, mut names) = (0, true, Vec::new());
    for (index, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if start && character.is_alphanumeric() => {
                names.push(first_name(&list[index..]));
                start = false;
            }
            _ => {}
        }
    }
    names
}

fn first_name(text: &str) -> String {
    text.chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect()
}
