//! The tools of one upstream: listed within bounds, named, and pinned by a hash of their definition.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rmcp::{
    model::{PaginatedRequestParams, Tool},
    service::{Peer, RoleClient, ServiceError},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    ToolInfo, name,
    schema::is_bounded,
    stub::{self, Described, Passing, Shape},
    text,
};
use crate::turn::json_size;

/// Tools of one upstream; further ones are left out.
const MAX_TOOLS: usize = 2000;
/// Pages of `tools/list`.
const MAX_PAGES: usize = 100;
/// Bytes of all pages together.
const MAX_LIST_BYTES: u64 = 16 << 20;
/// Bytes of a tool's name; a longer one is left out.
const MAX_NAME_BYTES: usize = 512;
const MAX_TITLE_CHARS: usize = 200;
const MAX_DESCRIPTION_CHARS: usize = 8000;

/// One tool, ready to be granted.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) info: ToolInfo,
    pub(super) passing: Passing,
    /// The key of a wrapper around its answers.
    pub(super) unwrap: Option<String>,
    /// Hash of everything that a reader or the sandbox was told of the tool.
    pub(super) digest: [u8; 32],
}

/// The tools of one upstream at one time.
#[derive(Debug, Default)]
pub(super) struct Tools {
    by_name: BTreeMap<String, Arc<Entry>>,
    by_original: BTreeMap<String, Arc<Entry>>,
}

/// Whose tools they are.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) server: String,
    pub(super) prefix: String,
    pub(super) all_prefixes: Arc<[String]>,
}

impl Tools {
    /// Asks an upstream for its tools.
    ///
    /// # Errors
    ///
    /// The upstream did not answer with a list of tools.
    pub(super) async fn list(peer: &Peer<RoleClient>, owner: &Owner) -> Result<Self, ServiceError> {
        Ok(Self::new(listed(peer, owner).await?, owner))
    }

    pub(super) fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name)
    }

    pub(super) fn original(&self, tool: &str) -> Option<&Arc<Entry>> {
        self.by_original.get(tool)
    }

    /// In the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_name.values()
    }

    fn new(mut tools: Vec<Tool>, owner: &Owner) -> Self {
        let mut seen = BTreeSet::new();
        tools.retain(|tool| tool.name.len() <= MAX_NAME_BYTES && seen.insert(tool.name.clone()));
        let originals: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        let names = name::functions(
            &owner.server,
            &owner.prefix,
            &owner.all_prefixes,
            &originals,
        );
        let mut all = Self::default();
        for (tool, name) in tools.iter().zip(names) {
            let entry = Arc::new(entry(tool, name.clone(), owner));
            all.by_original
                .insert(tool.name.to_string(), Arc::clone(&entry));
            all.by_name.insert(name, entry);
        }
        all
    }
}

async fn listed(peer: &Peer<RoleClient>, owner: &Owner) -> Result<Vec<Tool>, ServiceError> {
    let mut tools = Vec::new();
    let mut bytes = 0_u64;
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = peer
            .list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor)))
            .await?;
        for tool in page.tools {
            bytes = bytes.saturating_add(json_size(&tool));
            if tools.len() == MAX_TOOLS || bytes > MAX_LIST_BYTES {
                tracing::warn!(upstream = %owner.server, kept = tools.len(), "the upstream offers too many tools; the rest is left out");
                return Ok(tools);
            }
            tools.push(tool);
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    tracing::warn!(upstream = %owner.server, kept = tools.len(), "the upstream's list of tools does not end; the rest is left out");
    Ok(tools)
}

fn entry(tool: &Tool, name: String, owner: &Owner) -> Entry {
    let description = tool.description.as_deref().unwrap_or_default();
    let input_schema = presentable(&tool.input_schema);
    let output_schema = tool.output_schema.as_deref().map(presentable);
    let described = Described {
        description,
        input_schema: &input_schema,
        output_schema: output_schema.as_ref(),
    };
    let Shape {
        stub,
        signature,
        passing,
        unwrap,
    } = stub::build(&name, described);
    let title = tool
        .title
        .as_deref()
        .or_else(|| tool.annotations.as_ref()?.title.as_deref());
    let info = ToolInfo {
        name,
        upstream: owner.server.clone(),
        tool: tool.name.to_string(),
        title: title
            .map(|title| text::one_line(title, MAX_TITLE_CHARS))
            .filter(|title| !title.is_empty()),
        description: text::clean(description.trim(), MAX_DESCRIPTION_CHARS),
        stub,
        signature,
        input_schema,
        output_schema,
    };
    Entry {
        info,
        passing,
        unwrap,
        digest: digest(tool),
    }
}

/// The schema with its words cleaned: they reach the model. One beyond the bounds is replaced.
fn presentable(schema: &Map<String, Value>) -> Value {
    if !is_bounded(schema) {
        return json!({
            "type": "object",
            "description": "The upstream's schema is too large to show; arguments are not checked.",
            "additionalProperties": true,
        });
    }
    let mut schema = Value::Object(schema.clone());
    clean_words(&mut schema);
    schema
}

/// Cleans every text but those that arguments are compared with.
fn clean_words(schema: &mut Value) {
    match schema {
        Value::String(words) => *words = text::clean(words, MAX_DESCRIPTION_CHARS),
        Value::Array(items) => items.iter_mut().for_each(clean_words),
        Value::Object(entries) => {
            let compared = [
                "enum",
                "const",
                "required",
                "$ref",
                "pattern",
                "dependentRequired",
            ];
            let shown = entries
                .iter_mut()
                .filter(|(key, _)| !compared.contains(&key.as_str()));
            shown.for_each(|(_, value)| clean_words(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn digest(tool: &Tool) -> [u8; 32] {
    let told = (
        &tool.name,
        &tool.title,
        &tool.description,
        &tool.input_schema,
        &tool.output_schema,
    );
    // Serialising strings and JSON does not fail; if it did, every such tool would look alike
    // and still never equal a real one.
    Sha256::digest(serde_json::to_vec(&told).unwrap_or_default()).into()
}
