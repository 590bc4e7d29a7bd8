//! The bridge: granted tools of upstream MCP servers, as functions of a turn.
