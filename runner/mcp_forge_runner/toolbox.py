"""The tools of a session's turns: as the grant says, under names that may be the user's own."""

from .originals import BUILTINS as __builtins__

import sys

from .offered import ToolError, make_module


NEVER = object()


class Toolbox:
    """Keeps `mcp_forge` and the names in `__main__` in step with each turn's grant.

    A name that the user bound to something else stays the user's; the tool is then
    `mcp_forge.name`.
    """

    def __init__(self, channel, namespace: dict) -> None:
        self.channel, self.namespace = channel, namespace
        self.stubs, self.tools, self.offered = {}, {}, {}
        self.module = make_module()

    def offer(self, stubs: list, display) -> None:
        """The grant of the turn that begins. A tool that was granted before is the same object."""
        tools = {}
        for stub in stubs:
            name = stub["name"]
            if self.stubs.get(name) != stub:
                self.stubs[name] = stub
                self.tools[name] = self.make_tool(stub)
            tools[name] = self.tools[name]
        for name in self.tools.keys() - tools.keys():
            del self.tools[name], self.stubs[name]
        names = {**tools, "ToolError": ToolError, "display": display}
        self.bind(names)
        self.fill_module(tools, names)

    def make_tool(self, stub: dict):
        from .tools import Tool

        return Tool(stub, self.channel)

    def bind(self, names: dict) -> None:
        """Names of the user's are left alone."""
        for name, value in self.offered.items():
            if name not in names and self.namespace.get(name) is value:
                del self.namespace[name]
        for name, value in names.items():
            if name not in self.namespace or self.namespace[name] is self.offered.get(name, NEVER):
                self.namespace[name] = value
        self.offered = names

    def fill_module(self, tools: dict, names: dict) -> None:
        """The module stays the same object: an `import` of an earlier turn sees the new tools."""

        def list_tools() -> list:
            """The granted tools, one line each: signature and first line of the documentation."""
            return [tool.summary() for tool in tools.values()]

        list_tools.__name__ = list_tools.__qualname__ = "tools"
        list_tools.__module__ = "mcp_forge"
        contents = self.module.__dict__
        for name in [name for name in contents if not name.startswith("__")]:
            del contents[name]
        contents.update(names, tools=list_tools, __all__=[*names, "tools"])
        sys.modules["mcp_forge"] = self.module
