//! Settings whose features come later: their types and ranges are checked today, so that a file
//! written now stays valid.

/// What the operator wrote for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    /// `security.allow_network`. Sandboxes have no network whatever it says.
    pub allow_network: bool,
}
