"""Counts checks, writes configurations, and finds processes: what the checks in sdk.py stand on."""

import asyncio
import json
import os
import sys
import tempfile
import time
import traceback
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

HERE = Path(__file__).resolve().parent


class Checks:
    """Runs checks one after another and prints a line for each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    async def run(self, name: str, check, *arguments, seconds: float = 240) -> None:
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await check(*arguments)
        except Exception:
            self.failed += 1
            print(f"FAILED  {name} ({time.monotonic() - started:.1f} s)", flush=True)
            print("        " + traceback.format_exc().replace("\n", "\n        "), flush=True)
        else:
            self.passed += 1
            print(f"ok      {name} ({time.monotonic() - started:.1f} s)", flush=True)

    def finish(self) -> int:
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0


class Forge:
    """The binary under test, and a directory for its state."""

    def __init__(self, directory: Path) -> None:
        self.binary = os.environ["FORGE_TEST_BINARY"]
        self.tools = Path(os.environ["FORGE_TEST_TOOLS"])
        self.directory = directory
        self.allowed = directory / "allowed"
        self.allowed.mkdir()
        self.log_path = directory / "server.log"
        self.environment = {
            "MCP_FORGE_DATA_DIR": str(directory / "data"),
            # The upstreams' `#!/usr/bin/env node` finds any Node; everything else is absolute.
            "PATH": os.environ["PATH"],
        }
        uv = self.tools / "venv/bin/uv"
        if uv.exists():
            self.environment["MCP_FORGE_ENVIRONMENT_BUILDER_UV"] = str(uv)
        # The operator's certificates, where the index is reached through somebody else's.
        if "SSL_CERT_FILE" in os.environ:
            self.environment["SSL_CERT_FILE"] = os.environ["SSL_CERT_FILE"]

    @classmethod
    @asynccontextmanager
    async def make(cls):
        with tempfile.TemporaryDirectory(prefix="mcp-forge-clients-") as directory:
            forge = cls(Path(directory))
            try:
                yield forge
            finally:
                if forge.log_path.exists() and "--log" in sys.argv:
                    print(forge.log_path.read_text(errors="replace"))

    def real_upstreams(self) -> dict:
        """The two public servers, under the names that users give them."""
        bin_directory = self.tools / "npm/node_modules/.bin"
        return {
            "filesystem": {"command": str(bin_directory / "mcp-server-filesystem"), "args": [str(self.allowed)]},
            "everything": {"command": str(bin_directory / "mcp-server-everything"), "args": ["stdio"]},
        }

    def own_upstreams(self, *names: str) -> dict:
        """Servers of github_like.py."""
        script = str(HERE / "github_like.py")
        return {name: {"command": sys.executable, "args": ["-B", script, name]} for name in names}

    def command(self, name: str, upstreams: dict, sections: dict) -> list[str]:
        """Writes a configuration and returns the command line that serves it."""
        config = {"mcp_tools": upstreams, **sections}
        path = self.directory / f"{name}.yaml"
        # JSON is YAML too.
        path.write_text(json.dumps(config, indent=2))
        return [self.binary, "serve", "--config", str(path)]

    @asynccontextmanager
    async def client(
        self,
        name: str,
        upstreams: dict,
        *,
        mode: str = "legacy",
        python: str | None = None,
        sections: dict | None = None,
        **more,
    ):
        """A connected client of a new server; `more` is the SDK's."""
        sections = (sections or {}) | ({"python": {"path": python}} if python else {})
        program, *arguments = self.command(name, upstreams, sections)
        parameters = StdioServerParameters(command=program, args=arguments, env=self.environment)
        with self.log_path.open("a") as log:
            async with Client(stdio_client(parameters, errlog=log), mode=mode, **more) as client:
                yield client


class RawServer:
    """A server that we talk JSON-RPC to by hand: to kill it, or to be an old client."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    @asynccontextmanager
    async def start(cls, forge: Forge, name: str, upstreams: dict, **sections):
        with forge.log_path.open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *forge.command(name, upstreams, sections),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=os.environ | forge.environment,
                limit=64 * 1024 * 1024,
            )
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        await self.process.stdin.drain()

    async def answer_to(self, request_id: int) -> dict:
        """The response to one request; notifications before it are dropped."""
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == request_id and "method" not in message:
                return message
        raise AssertionError(f"the server ended without an answer to request {request_id}")

    async def initialize(self, version: str) -> dict:
        parameters = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "by-hand", "version": "1"},
        }
        await self.send({"id": 0, "method": "initialize", "params": parameters})
        answer = await self.answer_to(0)
        await self.send({"method": "notifications/initialized"})
        return answer["result"]


async def execute(client: Client, code: str, **arguments) -> dict:
    """Runs code and returns the structured content; a refusal is a failure."""
    result = await client.call_tool("execute_python", {"code": code, **arguments})
    if result.structured_content is None:
        raise AssertionError(f"refused: {text_of(result)}")
    return result.structured_content


async def completed(client: Client, code: str, **arguments) -> dict:
    """Runs code that must complete."""
    response = await execute(client, code, **arguments)
    assert response["outcome"] == "completed" and response["success"] is True, json.dumps(response, indent=2)[:4000]
    return response


async def refusal(client: Client, tool: str, arguments: dict) -> str:
    """The sentence with which a bad call is refused, as a protocol error or as a tool error."""
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        return error.error.message
    assert result.is_error, f"not refused: {text_of(result)[:500]}"
    return text_of(result)


def text_of(result) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def read_json(client: Client, uri: str):
    """A resource's one content, parsed."""
    result = await client.read_resource(uri)
    assert len(result.contents) == 1, result.contents
    assert str(result.contents[0].uri) == uri, result.contents[0].uri
    return json.loads(result.contents[0].text)


async def read_until(client: Client, uri: str, holds):
    """A resource's content once this holds of it: a server that is busy tells what it has, or had before."""
    deadline = time.monotonic() + 60
    while not holds(content := await read_json(client, uri)):
        assert time.monotonic() < deadline, content
        await asyncio.sleep(0.05)
    return content


def processes_with(marker: str) -> set[int]:
    """Live processes of the whole machine that have `marker` among their arguments."""
    found = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                arguments = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in arguments:
                found.add(int(directory.name))
    return found


def descendants(ancestor: int) -> dict[int, int]:
    """Every process below `ancestor`, with its start time, which tells it from a later one of the same number."""
    parents: dict[int, tuple[int, int]] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and (found := parent_and_start(int(directory.name))):
            parents[int(directory.name)] = found
    below = {ancestor}
    while more := {process for process, (parent, _) in parents.items() if parent in below and process not in below}:
        below |= more
    return {process: parents[process][1] for process in below - {ancestor} if process in parents}


def parent_and_start(process: int) -> tuple[int, int] | None:
    """None if it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses and may itself contain some.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


async def wait_until(condition, seconds: float, what: str):
    """Polls until the condition holds and returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.05)
    return value
