//! From the checked tree to typed values, with the table's default where nothing is written.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    error::ConfigError,
    keys::{KEYS, Kind},
    raw::{Content, Node},
    values::{self, Places},
};

/// Reads values out of one checked tree.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// The tree.
    pub(super) tree: &'a Node,
    /// Where errors say they are.
    pub(super) errors: Places<'a>,
    /// What relative paths of the file start at.
    pub(super) base: PathBuf,
    /// What `~` is.
    pub(super) home: Option<PathBuf>,
}

impl Reader<'_> {
    pub(super) fn size(&self, path: &str) -> Result<u64, ConfigError> {
        let node = self.node_or_default(path);
        values::size_of(&node).map_err(|problem| self.errors.error(Some(&node), path, problem))
    }

    pub(super) fn bytes(&self, path: &str) -> Result<usize, ConfigError> {
        usize::try_from(self.size(path)?)
            .map_err(|_| self.error(path, "this is more than the machine can address"))
    }

    pub(super) fn duration(&self, path: &str) -> Result<Duration, ConfigError> {
        let node = self.node_or_default(path);
        values::duration_of(&node).map_err(|problem| self.errors.error(Some(&node), path, problem))
    }

    pub(super) fn count(&self, path: &str) -> Result<u64, ConfigError> {
        match self.node_or_default(path).content {
            Content::Integer(value) => u64::try_from(value)
                .map_err(|_| self.error(path, format!("{value} is less than nothing"))),
            _ => Err(self.error(path, "this is not a whole number")),
        }
    }

    pub(super) fn number<N: TryFrom<u64>>(&self, path: &str) -> Result<N, ConfigError> {
        N::try_from(self.count(path)?).map_err(|_| self.error(path, "the number is out of range"))
    }

    pub(super) fn flag(&self, path: &str) -> bool {
        matches!(self.node_or_default(path).content, Content::Boolean(true))
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        match self.node_or_default(path).content {
            Content::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    pub(super) fn texts(&self, path: &str) -> Vec<String> {
        let Content::List(items) = self.node_or_default(path).content else {
            return Vec::new();
        };
        items
            .into_iter()
            .filter_map(|item| {
                if let Content::Text(text) = item.content {
                    Some(text)
                } else {
                    None
                }
            })
            .collect()
    }

    pub(super) fn text_table(&self, path: &str) -> BTreeMap<String, String> {
        let Content::Table(entries) = self.node_or_default(path).content else {
            return BTreeMap::new();
        };
        let text = |node: Node| {
            if let Content::Text(text) = node.content {
                Some(text)
            } else {
                None
            }
        };
        entries
            .into_iter()
            .filter_map(|(name, node)| Some((name, text(node)?)))
            .collect()
    }

    /// A path: `~/` is the home directory; a relative one starts at the file's directory, or at
    /// the working directory when an environment variable gave it.
    pub(super) fn path(&self, path: &str) -> Option<PathBuf> {
        let written = self.text(path)?;
        let from_file = self
            .tree
            .at(&split(path))
            .is_some_and(|node| matches!(node.origin, super::raw::Origin::Line(_)));
        Some(self.located(&written, from_file))
    }

    /// A list of paths, each as [`Reader::path`] has it.
    pub(super) fn paths(&self, path: &str) -> Vec<PathBuf> {
        let from_file = self
            .tree
            .at(&split(path))
            .is_some_and(|node| matches!(node.origin, super::raw::Origin::Line(_)));
        let written = self.texts(path);
        written
            .iter()
            .map(|written| self.located(written, from_file))
            .collect()
    }

    fn located(&self, written: &str, from_file: bool) -> PathBuf {
        let expanded = match (written.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(written),
        };
        if from_file {
            self.base.join(expanded)
        } else {
            absolute(&expanded)
        }
    }

    /// The parts of a section whose names the operator chose, in the order they were written.
    pub(super) fn named(&self, section: &str) -> impl Iterator<Item = (&str, &Node)> {
        let entries = match self.tree.at(&split(section)).map(|node| &node.content) {
            Some(Content::Table(entries)) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// Whether a key has a value of its own.
    pub(super) fn is_written(&self, path: &str) -> bool {
        self.tree
            .at(&split(path))
            .is_some_and(|node| !matches!(node.content, Content::Nothing))
    }

    /// A key's value as an error message shows it.
    pub(super) fn shown(&self, path: &str) -> String {
        self.node_or_default(path).shown()
    }

    /// The same reader, inside one part of the tree.
    pub(super) fn inside<'b>(&'b self, node: &'b Node) -> Reader<'b> {
        Reader {
            tree: node,
            errors: Places {
                file: self.errors.file,
            },
            base: self.base.clone(),
            home: self.home.clone(),
        }
    }

    /// The error for what is written at a path, or for the whole file where nothing is.
    pub(super) fn error(&self, path: &str, problem: impl Into<String>) -> ConfigError {
        self.errors.error(self.tree.at(&split(path)), path, problem)
    }

    fn node_or_default(&self, path: &str) -> Node {
        match self.tree.at(&split(path)) {
            Some(node) if !matches!(node.content, Content::Nothing) => node.clone(),
            _ => default_of(path),
        }
    }
}

/// A path that does not depend on the working directory any more.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn default_of(path: &str) -> Node {
    let matches = |pattern: &str| {
        pattern == path
            || pattern
                .rsplit_once("*.")
                .is_some_and(|(_, last)| last == path)
    };
    let (kind, default) = KEYS
        .iter()
        .find(|key| matches(key.path))
        .map_or((Kind::Text, ""), |key| (key.kind, key.default));
    values::default_node(default, kind)
}

fn split(path: &str) -> Vec<&str> {
    path.split('.').collect()
}
