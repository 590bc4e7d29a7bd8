//! Traces: where they come from, and where they go.

use serde_json::{Value, json};

/// A configuration file in which `upstream.py` is called by each of these names.
pub(super) fn config_with_upstreams(names: &[&str], more: Value) -> tempfile::NamedTempFile {
    let upstream = json!({"command": "python3", "args": ["-c", include_str!("upstream.py")]});
    let mut config = more;
    for name in names {
        config["mcp_tools"][name] = upstream.clone();
    }
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    file
}
