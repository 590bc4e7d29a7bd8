//! The configuration as written: a tree of located values, before anything is checked.
//!
//! Every later error names its line because every value here still knows it.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Spanned};

use super::error::ConfigError;
use crate::text::quoted;

/// One value and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// What it is.
    pub(super) content: Content,
    /// Where it was written.
    pub(super) origin: Origin,
    /// A text as it stood before `${...}` was replaced. The replaced text may be secret.
    pub(super) written: Option<String>,
}

/// The shapes of YAML that a configuration uses.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Nothing, or `null`.
    Nothing,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// Any other finite number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values, in the order they were written.
    Table(Vec<(String, Node)>),
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A line of the file.
    Line(u64),
    /// An environment variable.
    Variable(String),
    /// Nowhere: the section that holds an environment variable's value.
    Implied,
}

/// Parses one YAML (or JSON) document under a budget that no honest configuration reaches.
///
/// # Errors
///
/// [`ConfigError::Syntax`], never with the file's text in it: that may hold secrets.
pub(super) fn parse(file: &Path, text: &str) -> Result<Node, ConfigError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 100_000,
            max_nodes: 50_000,
            max_depth: 32,
            flow_nesting_limit: 32,
            max_documents: 1,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 100_000,
            max_merge_keys: 1_000,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        strict_booleans: true,
        with_snippet: false,
    };
    let parsed: Result<Option<Spanned<Content>>, _> =
        serde_saphyr::from_str_with_options(text, options);
    match parsed {
        Ok(Some(content)) => Ok(Node::from(content)),
        Ok(None) => Ok(Node::table(Origin::Implied)),
        Err(error) => Err(syntax_error(file, &error)),
    }
}

impl Node {
    /// An empty table.
    pub(super) fn table(origin: Origin) -> Self {
        Self {
            content: Content::Table(Vec::new()),
            origin,
            written: None,
        }
    }

    /// The value of an environment variable.
    pub(super) fn variable(name: &str, value: &str) -> Self {
        let origin = Origin::Variable(name.to_owned());
        Self {
            content: Content::Text(value.to_owned()),
            origin,
            written: None,
        }
    }

    /// The value at a path of keys.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        match &self.content {
            Content::Table(entries) => entries.iter().find(|(key, _)| key == first)?.1.at(rest),
            Content::List(items) => items.get(first.parse::<usize>().ok()?)?.at(rest),
            _ => None,
        }
    }

    /// Puts a value at a path, making the tables on the way. What stood there is replaced.
    pub(super) fn put(&mut self, path: &[&str], value: Self) {
        let Some((first, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self.content, Content::Table(_)) {
            *self = Self::table(Origin::Implied);
        }
        let Content::Table(entries) = &mut self.content else {
            return;
        };
        let index = entries
            .iter()
            .position(|(key, _)| key == first)
            .unwrap_or_else(|| {
                entries.push(((*first).to_owned(), Self::table(Origin::Implied)));
                entries.len() - 1
            });
        entries[index].1.put(rest, value);
    }

    /// Takes a key out of a table.
    pub(super) fn take(&mut self, key: &str) -> Option<Self> {
        let Content::Table(entries) = &mut self.content else {
            return None;
        };
        let index = entries.iter().position(|(name, _)| name == key)?;
        Some(entries.remove(index).1)
    }

    /// The value as an error message shows it: as it was written, never what `${...}` became.
    pub(super) fn shown(&self) -> String {
        if let Some(written) = &self.written {
            return quoted(written);
        }
        match &self.content {
            Content::Nothing => "nothing".to_owned(),
            Content::Boolean(value) => value.to_string(),
            Content::Integer(value) => value.to_string(),
            Content::Number(value) => value.to_string(),
            Content::Text(text) => quoted(text),
            Content::List(_) => "a list".to_owned(),
            Content::Table(_) => "a table of keys".to_owned(),
        }
    }

    /// Whether the text came from the environment, where everything is text.
    pub(super) fn is_from_environment(&self) -> bool {
        self.written.is_some() || matches!(self.origin, Origin::Variable(_))
    }
}

impl From<Spanned<Content>> for Node {
    fn from(spanned: Spanned<Content>) -> Self {
        Self {
            origin: Origin::Line(spanned.referenced.line()),
            content: spanned.value,
            written: None,
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, a number, true, false, a list or keys with values")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Integer(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Content, E> {
        i64::try_from(value)
            .map(Content::Integer)
            .map_err(|_| E::custom("a number is too large"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Content>>()? {
            list.push(Node::from(item));
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Content, A::Error> {
        let mut table: Vec<(String, Node)> = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Spanned<Content>>()? {
            table.push((key, Node::from(value)));
        }
        Ok(Content::Table(table))
    }
}

fn syntax_error(file: &Path, error: &serde_saphyr::Error) -> ConfigError {
    const MOST: usize = 300;
    let place = match error.location() {
        Some(location) if location.line() > 0 => {
            format!(
                "{}:{}:{}",
                file.display(),
                location.line(),
                location.column()
            )
        }
        _ => file.display().to_string(),
    };
    let problem = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key} is written twice")
        }
        error => error.to_string(),
    };
    // The place stands in front already, and the parser's advice is for programmers.
    let sentence = problem
        .lines()
        .next()
        .unwrap_or_default()
        .split(" at line ")
        .next()
        .unwrap_or_default();
    let problem = sentence
        .chars()
        .filter(|letter| !letter.is_control())
        .take(MOST)
        .collect();
    ConfigError::Syntax { place, problem }
}
