//! The native engine: Linux namespaces, built by `mcp-forge jail`.
