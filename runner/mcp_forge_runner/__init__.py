"""MCP-Forge's runner: the program inside the sandbox that runs an agent's Python.

Standard library only, CPython 3.10 and later. Start it with `mcp_forge_runner.__main__.main()`.
Nothing here is a security boundary: user code shares the process and may do to it what it
likes. The care below is for honest reports, not for containment; the sandbox contains.
"""
