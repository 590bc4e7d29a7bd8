"""FastMCP's client against the binary over HTTP, in both eras that it speaks.

Environment: as for sdk.py; run with an interpreter that has FastMCP.
"""

import asyncio
import json
import sys
import time

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from harness import Checks, Forge
from over_http import ERAS, Served


async def main() -> int:
    checks = Checks()
    async with Forge.make() as forge, Served.start(forge) as served:
        for mode, version in ERAS.items():
            await checks.run(f"FastMCP over HTTP, {version}", check, served, mode, version)
        await checks.run("FastMCP over HTTP: a wrong token is refused", check_wrong_token, served)
    return checks.finish()


def client(served: Served, token: str, mode: str, **more) -> Client:
    return Client(StreamableHttpTransport(f"{served.url}/mcp", auth=token), mode=mode, **more)


async def check(served: Served, mode: str, version: str) -> None:
    heard = []

    async def told(_progress, _total, message) -> None:
        heard.append(message or "")

    async with client(served, served.token, mode) as connected:
        assert connected.session.protocol_version == version, connected.session.protocol_version
        tools = {tool.name for tool in await connected.list_tools()}
        assert {"execute_python", "list_sessions"} <= tools, tools
        code = "import time\nfor step in range(3):\n    print('step', step, flush=True)\n    time.sleep(3)\n6 * 7"
        called = await connected.call_tool("execute_python", {"code": code}, progress_handler=told)
        assert called.structured_content["result"] == 42, called
        assert any("step 1" in message for message in heard), heard
        failed = await connected.call_tool("execute_python", {"code": "1 / 0"}, raise_on_error=False)
        assert failed.structured_content["error"]["type"] == "ZeroDivisionError", failed
        # An upstream that takes long to start is left out at first.
        deadline = time.monotonic() + 60
        while True:
            [contents] = await connected.read_resource("mcp://forge/tools/available")
            if any(name.startswith("meeting_") for name in json.loads(contents.text)):
                break
            assert time.monotonic() < deadline, contents
            await asyncio.sleep(0.05)


async def check_wrong_token(served: Served) -> None:
    try:
        async with client(served, "mcpf_wrong", "auto") as connected:
            await connected.list_tools()
    except (Exception, BaseExceptionGroup):
        return
    raise AssertionError("a wrong token was let in")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
