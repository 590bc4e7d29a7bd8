//! Environments: trees of packages that sandboxes have in place of the interpreter's own.

mod engines;
pub(crate) mod tree;
