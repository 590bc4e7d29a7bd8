//! Environments: trees of packages that sandboxes have in place of the interpreter's own.

use std::{fs, path::Path};

mod answers;
mod builds;
mod changes;
mod disk;
mod engines;
mod holes;
mod hostile;
mod index;
mod lifecycle;
mod place;
pub(crate) mod rows;
mod scans;
pub(crate) mod tree;
mod versions;
mod walls;

/// What is in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
