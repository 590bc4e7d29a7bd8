"""One server over HTTP, and many clients of the official SDK at the same time, of both protocol eras."""

import asyncio
import re
from contextlib import asynccontextmanager

import httpx2
from environments import HELD_BACK, check_approval, held_back
from harness import Checks, Forge, completed, execute, read_json, read_until
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tasks import check_tasks

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


class Served:
    """A server that listens, and the token that it printed."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    @classmethod
    @asynccontextmanager
    async def start(cls, forge: Forge, name: str = "http", port: int = 0, **more):
        # Of many clients at once none is to hear that the server is busy.
        sections = held_back() | {"execution": {"max_concurrent": 20}} | more
        program, *arguments = forge.command(name, forge.own_upstreams("meeting"), sections)
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            "--http",
            f"127.0.0.1:{port}",
            "--data-dir",
            str(forge.directory / f"{name}-data"),
            stderr=asyncio.subprocess.PIPE,
            env=forge.environment,
        )
        try:
            url = token = None
            while not url:
                line = (await process.stderr.readline()).decode()
                assert line, "the server did not start"
                if found := re.fullmatch(r"\s+(mcpf_[0-9a-f]{64})\n", line):
                    token = found[1]
                elif line.startswith("Listening at "):
                    url = line.removeprefix("Listening at ").strip()
            assert token, "the first start prints a token"
            # Whatever else it says must not fill the pipe.
            drained = asyncio.create_task(process.stderr.read())
            yield cls(url, token)
            process.terminate()
            assert await process.wait() == 0, process.returncode
            await drained
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @asynccontextmanager
    async def client(self, mode: str, token: str | None = None, **more):
        headers = {"Authorization": f"Bearer {token or self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
            async with Client(streamable_http_client(f"{self.url}/mcp", http_client=http), mode=mode, **more) as client:
                yield client


async def run_http(checks: Checks, forge: Forge) -> None:
    async with Served.start(forge) as served:
        for mode, version in ERAS.items():
            await checks.run(f"HTTP, {version}: tools, turns, resources", check_basics, served, mode, version)
            await checks.run(f"HTTP, {version}: a session keeps its variables", check_session, served, mode)
            await checks.run(f"HTTP, {version}: progress arrives while the code runs", check_progress, served, mode)
            connect = lambda answers, mode=mode: served.client(mode, elicitation_callback=answers)  # noqa: E731
            name = f"HTTP, {version}: packages are approved in place"
            await checks.run(name, check_approval, connect, HELD_BACK[mode], seconds=180)
        await checks.run("HTTP: long turns are tasks", check_tasks, lambda **more: served.client("auto", **more))
        await checks.run("HTTP: 10 clients of both eras at once, each its own answers", check_many, served, seconds=300)
        await checks.run("HTTP: a wrong token is refused", check_wrong_token, served)


async def check_basics(served: Served, mode: str, version: str) -> None:
    async with served.client(mode) as client:
        assert client.protocol_version == version, client.protocol_version
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"execute_python", "list_sessions"} <= tools, tools
        assert (await completed(client, "6 * 7"))["result"] == 42
        failed = await execute(client, "1 / 0")
        assert failed["success"] is False and failed["error"]["type"] == "ZeroDivisionError", failed
        # An upstream that takes long to start is left out at first.
        has_meeting = lambda names: any(name.startswith("meeting_") for name in names)  # noqa: E731
        await read_until(client, "mcp://forge/tools/available", has_meeting)
        assert isinstance(await read_json(client, "mcp://forge/audit/operations"), list)


async def check_session(served: Served, mode: str) -> None:
    async with served.client(mode) as client:
        await completed(client, "x = 41", session_id=f"http-{mode}")
    # Another connection, the same session: it belongs to whoever the token belongs to.
    async with served.client(mode) as client:
        assert (await completed(client, "x + 1", session_id=f"http-{mode}"))["result"] == 42


async def check_progress(served: Served, mode: str) -> None:
    heard = asyncio.Event()

    async def told(_progress, _total, message) -> None:
        if message and "halfway" in message:
            heard.set()

    async with served.client(mode) as client:
        code = "import time\nfor _ in range(600):\n    print('halfway', flush=True)\n    time.sleep(0.1)"
        call = asyncio.create_task(
            client.call_tool("execute_python", {"code": code}, progress_callback=told)
        )
        await asyncio.wait_for(heard.wait(), 60)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def check_many(served: Served) -> None:
    async def one(number: int) -> None:
        mode = list(ERAS)[number % 2]
        async with served.client(mode) as client:
            answers = await asyncio.gather(*(completed(client, f"print('mark-{number}-{n}'); {n}") for n in range(3)))
            for n, answer in enumerate(answers):
                assert (answer["result"], answer["stdout"]) == (n, f"mark-{number}-{n}\n"), answer

    await asyncio.gather(*(one(number) for number in range(10)))


async def check_wrong_token(served: Served) -> None:
    try:
        async with served.client("legacy", token="mcpf_wrong") as client:
            await client.list_tools()
    except (Exception, BaseExceptionGroup):
        return
    raise AssertionError("a wrong token was let in")
