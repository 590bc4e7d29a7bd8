"""An MCP server that answers with what it was told beside the arguments: over standard input and output, or HTTP."""

import http.server
import json
import sys

TOOLS = [
    {"name": "meta", "description": "What came with the call.", "inputSchema": {"type": "object"}},
    {"name": "fails", "description": "Fails.", "inputSchema": {"type": "object"}},
]


def answer(message, headers):
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "told", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "meta":
        told = {"meta": params.get("_meta", {}), "headers": headers}
        return {"content": [{"type": "text", "text": json.dumps(told)}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "canary-of-upstream"}], "isError": True}
    return None


def reply(message, headers):
    if "id" not in message:
        return None
    result = answer(message, headers)
    if result is None:
        error = {"code": -32601, "message": "unknown method"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        replied = reply(json.loads(body), headers)
        text = b"" if replied is None else json.dumps(replied).encode()
        self.send_response(202 if replied is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


if sys.argv[1:] == ["http"]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
for line in sys.stdin:
    replied = reply(json.loads(line), {})
    if replied is not None:
        print(json.dumps(replied), flush=True)
