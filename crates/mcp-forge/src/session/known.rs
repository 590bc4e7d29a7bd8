//! What is known of a session's content: the runner's word for it, bounded before it is kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    runner::wire::{Changes, FileState, InspectBounds, Inspected, Variable},
    turn::json_size,
};

/// Variables that are described.
const VARIABLES: usize = 1000;

/// Characters of a `repr`.
const REPR_CHARS: usize = 200;

/// Milliseconds of a processor that an inspection may take. The runner bounds the clock's time too.
const BUDGET_MS: u64 = 50;

/// Bytes of a name: of a variable, a class, a module, a column.
const NAME_BYTES: usize = 256;

/// Columns of a frame, and dimensions of a shape.
const COLUMNS: usize = 100;
const DIMENSIONS: usize = 64;

/// Bytes of all of it, beyond which variables are only named.
const MAX_BYTES: u64 = 2 << 20;

/// Threads that are named.
const THREADS: usize = 100;

/// What a session held when it was last asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    /// The last turn before that.
    pub(super) execution_id: Option<String>,
    /// When, in milliseconds since 1970.
    pub(super) as_of_ms: i64,
    pub(super) inspected: Inspected,
}

impl Known {
    /// What is known after a turn of which only files and names were looked at: variables that it
    /// bound are named, and described as far as they were before.
    pub(super) fn after(&self, told: Inspected, execution_id: &str, now_ms: i64) -> Self {
        let mut variables = self.inspected.variables.clone();
        let Changes {
            added,
            rebound,
            removed,
        } = &told.changes;
        let is_other = |name: &String| {
            told.functions.contains(name)
                || told.classes.contains(name)
                || told.imports.contains_key(name)
        };
        variables.retain(|variable| !removed.contains(&variable.name) && !is_other(&variable.name));
        for name in added.iter().chain(rebound).filter(|name| !is_other(name)) {
            let known = variables.iter().position(|known| known.name == *name);
            // A description of what it was bound to before would be wrong.
            known.map(|place| variables.remove(place));
            let variable = Variable {
                name: name.clone(),
                execution_id: Some(execution_id.to_owned()),
                ..Variable::default()
            };
            variables.insert(0, variable);
        }
        variables.truncate(VARIABLES);
        Self {
            execution_id: Some(execution_id.to_owned()),
            as_of_ms: now_ms,
            inspected: Inspected {
                variables,
                omitted_variables: self.inspected.omitted_variables,
                ..told
            },
        }
    }

    /// What is known after all was looked at. What the last turn changed was told before.
    pub(super) fn in_full(&self, told: Inspected, now_ms: i64) -> Self {
        let mut changes = self.inspected.changes.clone();
        for (all, more) in [
            (&mut changes.added, &told.changes.added),
            (&mut changes.rebound, &told.changes.rebound),
            (&mut changes.removed, &told.changes.removed),
        ] {
            for name in more {
                if all.len() < VARIABLES && !all.contains(name) {
                    all.push(name.clone());
                }
            }
        }
        Self {
            execution_id: self.execution_id.clone(),
            as_of_ms: now_ms,
            inspected: Inspected { changes, ..told },
        }
    }
}

/// How much an inspection may say.
pub(super) fn bounds(files: usize) -> InspectBounds {
    InspectBounds {
        variables: VARIABLES,
        repr_chars: REPR_CHARS,
        files,
        budget_ms: BUDGET_MS,
    }
}

/// Cuts what a runner should have cut: one that does not is user code.
pub(super) fn bounded(mut told: Inspected, bounds: &InspectBounds) -> Inspected {
    told.variables.truncate(bounds.variables);
    for variable in &mut told.variables {
        shorten(&mut variable.name, NAME_BYTES);
        shorten(&mut variable.kind, NAME_BYTES);
        if let Some(shape) = &mut variable.shape {
            shape.truncate(DIMENSIONS);
        }
        variable.dtypes = texts(std::mem::take(&mut variable.dtypes), COLUMNS);
        if let Some(repr) = &mut variable.repr {
            shorten(repr, 4 * bounds.repr_chars);
        }
        // Only a name of ours can name a turn.
        variable.execution_id = variable
            .execution_id
            .take()
            .filter(|id| is_execution_id(id));
    }
    for names in [
        &mut told.functions,
        &mut told.classes,
        &mut told.changes.added,
        &mut told.changes.rebound,
        &mut told.changes.removed,
    ] {
        names.truncate(VARIABLES);
        for name in names {
            shorten(name, NAME_BYTES);
        }
    }
    told.imports = texts(std::mem::take(&mut told.imports), VARIABLES);
    told.threads.truncate(THREADS);
    for name in &mut told.threads {
        shorten(name, NAME_BYTES);
    }
    told.files = files(told.files, bounds.files);
    if json_size(&told) > MAX_BYTES {
        for variable in &mut told.variables {
            variable.dtypes.clear();
            variable.repr = None;
        }
    }
    told
}

/// The files whose paths can be used on the host, each once.
pub(super) fn files(told: Vec<FileState>, most: usize) -> Vec<FileState> {
    let mut seen = std::collections::BTreeSet::new();
    told.into_iter()
        .filter(|file| super::tree::is_path(&file.path) && seen.insert(file.path.clone()))
        .take(most)
        .collect()
}

fn texts(map: Map<String, Value>, most: usize) -> Map<String, Value> {
    map.into_iter()
        .take(most)
        .filter_map(|(mut name, value)| {
            let Value::String(mut text) = value else {
                return None;
            };
            shorten(&mut name, NAME_BYTES);
            shorten(&mut text, NAME_BYTES);
            Some((name, Value::String(text)))
        })
        .collect()
}

fn is_execution_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_at_once_and_descriptions_later() {
        let named = |name: &str, kind: &str| Variable {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ..Variable::default()
        };
        let before = Known {
            inspected: Inspected {
                variables: vec![named("x", "int"), named("y", "str"), named("z", "list")],
                ..Inspected::default()
            },
            ..Known::default()
        };
        let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let told = Inspected {
            functions: texts(&["f"]),
            changes: Changes {
                added: texts(&["new", "f"]),
                rebound: texts(&["y"]),
                removed: texts(&["z"]),
            },
            ..Inspected::default()
        };
        let after = before.after(told, "e1", 5);
        let names: Vec<(&str, &str)> = after
            .inspected
            .variables
            .iter()
            .map(|variable| (variable.name.as_str(), variable.kind.as_str()))
            .collect();
        assert_eq!(names, [("y", ""), ("new", ""), ("x", "int")]);
        let full = after.in_full(Inspected::default(), 6);
        assert_eq!(full.inspected.changes, after.inspected.changes);
        assert_eq!(
            (full.as_of_ms, full.execution_id.as_deref()),
            (6, Some("e1"))
        );
    }

    #[test]
    fn a_runner_that_tells_too_much_is_cut() {
        let long = "x".repeat(10_000);
        let variable = Variable {
            name: long.clone(),
            kind: long.clone(),
            repr: Some(long.clone()),
            shape: Some(vec![1; 1000]),
            dtypes: (0..500)
                .map(|number| (format!("{number}-{}", "n".repeat(300)), "object".into()))
                .collect(),
            execution_id: Some("not one".to_owned()),
            ..Variable::default()
        };
        let file = |path: &str| FileState {
            path: path.to_owned(),
            ..FileState::default()
        };
        let told = Inspected {
            variables: vec![variable; 1100],
            functions: vec![long.clone(); 5000],
            threads: vec![long; 5000],
            files: vec![
                file("../x"),
                file("/etc/passwd"),
                file("a"),
                file("a"),
                file("b"),
            ],
            ..Inspected::default()
        };
        let kept = bounded(told, &bounds(10));
        assert_eq!(kept.files, [file("a"), file("b")]);
        assert_eq!(kept.variables[0].execution_id, None);
        assert!(kept.variables[0].repr.is_none() && kept.variables[0].dtypes.is_empty());
        // A million bytes of names, and the descriptions of a thousand variables.
        assert!(serde_json::to_string(&kept).unwrap().len() < 4_000_000);
    }
}
