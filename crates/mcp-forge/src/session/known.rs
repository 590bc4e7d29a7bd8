//! What is known of a session's content: the runner's word for it, bounded before it is kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    runner::wire::{FileState, InspectBounds, Inspected},
    turn::json_size,
};

/// Variables that are described.
const VARIABLES: usize = 1000;

/// Characters of a `repr`.
const REPR_CHARS: usize = 200;

/// Milliseconds that an inspection may take of the runner.
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
fn files(told: Vec<FileState>, most: usize) -> Vec<FileState> {
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
    use crate::runner::wire::Variable;

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
