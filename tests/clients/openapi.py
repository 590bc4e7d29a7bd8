"""schemathesis against the served OpenAPI document: every operation with values that the document allows and
with others, and every answer held against it. What is asked of it is in tests/openapi/schemathesis.toml.

Environment: as for sdk.py; run with an interpreter that has schemathesis and the SDK.
"""

import asyncio
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from harness import Forge
from over_http import Served

CONFIGURATION = Path(__file__).resolve().parent.parent / "openapi/schemathesis.toml"

# Nothing is built here: names of packages would be asked for at the public index.
NEVER_WELL = {"buildEnvironment", "rebuildEnvironment", "describeEnvironment", "deleteEnvironment"}

SECTIONS = {
    "environment_builder": {"enabled": False},
    "server": {"requests_per_minute": 1_000_000},
    "execution": {"default_timeout": "5s"},
}


async def main() -> int:
    async with Forge.make() as forge, Served.start(forge, **SECTIONS) as served:
        headers = {"Authorization": f"Bearer {served.token}"}
        async with httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=120) as client:
            document = (await client.get("/openapi.json")).json()
            execution = await prepare(client)
        report = forge.directory / "report.har"
        well = await schemathesis(served, execution, report)
        never = unreached(document, json.loads(report.read_text())["log"]["entries"])
        if never:
            print(f"FAILED  these operations never answered well, so nothing is known of them: {never}")
        operations = sum(len(methods) for methods in document["paths"].values())
        failed = (not well) + bool(never)
        print(f"{operations - failed} passed, {failed} failed")
        return 1 if failed else 0


async def prepare(client: httpx2.AsyncClient) -> str:
    """Something that operations can find: sessions with a file, and an execution, whose name is given back."""
    for session in ("one", "two", "three", "filed"):
        code = {"session_id": session, "code": "open('/workspace/f.txt', 'w').write('x')"}
        answer = (await client.post("/api/v1/execute", json=code)).json()
        assert answer["outcome"] == "completed", answer
    started = await client.post("/api/v1/execute?wait=false", json={"code": "print('x')"})
    assert started.status_code == 202, started.text
    return started.json()["execution_id"]


async def schemathesis(served: Served, execution: str, report: Path) -> bool:
    configuration = report.with_name("schemathesis.toml")
    configuration.write_text(CONFIGURATION.read_text().replace("EXECUTION", execution))
    arguments = ["--config-file", configuration, "--no-color", "run", f"{served.url}/openapi.json"]
    # The document itself is not for everybody either.
    arguments += ["--header", f"Authorization: Bearer {served.token}"]
    arguments += ["--report", "har", "--report-har-path", report]
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "st",
        *map(str, arguments),
        env=os.environ | {"FORGE_TEST_TOKEN": served.token},
        # It writes here what it found.
        cwd=report.parent,
    )
    return await process.wait() == 0


def unreached(document: dict, entries: list) -> list[str]:
    """The operations that no request of schemathesis did well."""
    statuses = defaultdict(set)
    for entry in entries:
        path = urlsplit(entry["request"]["url"]).path
        statuses[entry["request"]["method"].lower(), path].add(entry["response"]["status"])
    never = []
    for path, methods in document["paths"].items():
        # A path's parameters have no slash, except that of a file.
        pattern = re.compile("[^/]+".join(re.escape(part) for part in re.split(r"\{\w+\}", path)))
        for method, operation in methods.items():
            seen = {status for (sent, at), all_of_it in statuses.items() if sent == method and pattern.fullmatch(at) for status in all_of_it}
            if not any(200 <= status < 300 for status in seen) and operation["operationId"] not in NEVER_WELL:
                never.append(operation["operationId"])
    return never


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
