"""An MCP server over stdio whose tools do one thing each. Calls run side by side."""

import json
import os
import sys
import threading

writing = threading.Lock()
gates = {}
making = threading.Lock()
PNG = "iVBORw0KGgo="


def send(message):
    with writing:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def text(words, **extra):
    return {"content": [{"type": "text", "text": words}], **extra}


def structured(value):
    return text(json.dumps(value), structuredContent=value)


def meet(place, guests):
    """Returns when so many calls are at this place at once."""
    with making:
        gate = gates.setdefault(place, threading.Barrier(guests, timeout=20))
    gate.wait()
    return structured({"met": guests})


TOOLS = {
    "echo": ({"x": {}}, [], lambda x=None: structured({"got": x})),
    "size": ({"s": {"type": "string"}}, ["s"], lambda s: structured({"length": len(s)})),
    "big": ({"n": {"type": "integer"}}, ["n"], lambda n: text("b" * n)),
    "count": (
        {"n": {"type": "integer", "maximum": 10}, "unit": {"type": "string", "enum": ["a", "b"], "default": "a"}},
        ["n"],
        lambda n, unit="a": text(f"{n} {unit}"),
    ),
    "fail": ({"why": {"type": "string"}}, ["why"], lambda why: text(why, isError=True)),
    "meet": ({"place": {"type": "string"}, "guests": {"type": "integer"}}, ["place", "guests"], meet),
    "texts": ({}, [], lambda: {"content": [{"type": "text", "text": word} for word in ("one", "two")]}),
    "image": ({}, [], lambda: {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}),
    "page": (
        {},
        [],
        lambda: {"content": [{"type": "resource", "resource": {"uri": "kit://a", "mimeType": "text/plain", "text": "page"}}]},
    ),
    "nothing": ({}, [], lambda: {"content": []}),
    "wait": ({}, [], lambda: threading.Event().wait()),
    "die": ({}, [], lambda: os._exit(3)),
    "refuse": ({}, [], None),
}


def describe(name, properties, required):
    return {
        "name": name,
        "description": f"Does {name}.",
        "inputSchema": {"type": "object", "properties": properties, "required": required},
    }


def call(request):
    parameters = request["params"]
    function = TOOLS[parameters["name"]][2]
    if function is None:
        error = {"code": -32603, "message": "not today"}
        send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        return
    result = function(**parameters.get("arguments", {}))
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def main():
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            result = {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "kit", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": [describe(name, *tool[:2]) for name, tool in TOOLS.items()]}
        elif method == "tools/call":
            threading.Thread(target=call, args=(request,), daemon=True).start()
            continue
        elif method == "ping":
            result = {}
        elif "id" in request:
            error = {"code": -32601, "message": "no such method"}
            send({"jsonrpc": "2.0", "id": request["id"], "error": error})
            continue
        else:
            continue
        send({"jsonrpc": "2.0", "id": request["id"], "result": result})


main()
