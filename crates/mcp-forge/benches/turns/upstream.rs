//! An MCP server with two tools that take next to no time of their own.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use crate::Failure;

/// Bytes that `large` answers.
const LARGE_BYTES: usize = 10_000_000;

/// Serves standard input and output until the client goes.
pub(crate) fn serve() -> Result<(), Failure> {
    let large = "x".repeat(LARGE_BYTES);
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if message.get("id").is_none() {
            continue;
        }
        let mut answer = json!({"jsonrpc": "2.0", "id": message["id"]});
        match result(&message, &large) {
            Some(result) => answer["result"] = result,
            None => answer["error"] = json!({"code": -32601, "message": "unknown method"}),
        }
        serde_json::to_writer(&mut stdout, &answer)?;
        stdout.write_all(b"\n")?;
        stdout.flush()?;
    }
    Ok(())
}

fn result(message: &Value, large: &str) -> Option<Value> {
    let parameters = &message["params"];
    match message["method"].as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": parameters["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench", "version": "1"},
        })),
        "ping" => Some(json!({})),
        "tools/list" => Some(json!({"tools": [
            {
                "name": "echo",
                "description": "Gives back the text",
                "inputSchema": {
                    "type": "object",
                    "properties": {"text": {"type": "string"}},
                    "required": ["text"],
                },
            },
            {
                "name": "large",
                "description": "Gives back 10 MB of text",
                "inputSchema": {"type": "object", "properties": {}},
            },
        ]})),
        "tools/call" => {
            let text = match parameters["name"].as_str()? {
                "echo" => parameters["arguments"]["text"].as_str()?,
                "large" => large,
                _ => return None,
            };
            Some(json!({"content": [{"type": "text", "text": text}]}))
        }
        _ => None,
    }
}
