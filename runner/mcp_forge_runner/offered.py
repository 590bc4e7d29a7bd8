"""What user code finds besides Python: the module `mcp_forge` and the names in `__main__`."""

from .originals import BUILTINS as __builtins__

import sys


class ToolError(Exception):
    """A tool call failed.

    `kind` is one of not_granted, invalid_arguments, tool, upstream, timeout, limit;
    `tool` the function's name; `message` what happened.
    """

    __module__ = "mcp_forge"

    def __init__(self, message: str = "", kind: str = "tool", tool: str = "") -> None:
        super().__init__(message, kind, tool)
        self.message = message
        self.kind = kind
        self.tool = tool

    def __str__(self) -> str:
        return f"{self.tool}: {self.message} ({self.kind})" if self.tool else self.message


def offer(stubs: list, channel, display) -> dict:
    """Makes the module `mcp_forge`; the names for `__main__`: tools, `ToolError`, `display`."""
    tools = {}
    if stubs:  # an ordinary turn without tools need not load them
        from .tools import Tool

        tools = {stub["name"]: Tool(stub, channel) for stub in stubs}

    def list_tools() -> list:
        """The granted tools, one line each: signature and first line of the documentation."""
        return [tool.summary() for tool in tools.values()]

    list_tools.__name__ = list_tools.__qualname__ = "tools"
    list_tools.__module__ = "mcp_forge"
    names = {"ToolError": ToolError, "display": display}
    module = make_module()
    module.__dict__.update(tools, **names, tools=list_tools)
    module.__all__ = [*tools, *names, "tools"]
    sys.modules["mcp_forge"] = module
    return {**tools, **names}


def make_module():
    """The module `mcp_forge`, still empty."""
    return type(sys)("mcp_forge", "What MCP-Forge adds to this Python: tools, ToolError, display.")
