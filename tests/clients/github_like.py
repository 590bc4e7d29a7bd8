"""A small real MCP server with the tools that the examples of the specification call.

`github_like.py github` offers `search_repos`, `github_like.py filesystem` offers `read` and
`read_csv`, and `github_like.py meeting` offers `meet`, which returns only when enough calls are
in flight at once: the proof that calls run in parallel, without measuring time.
"""

import asyncio
import csv
import io
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

LANGUAGES = ["Python", "Rust", "Go", "TypeScript"]


def github() -> MCPServer:
    server = MCPServer("github-like")

    @server.tool()
    def search_repos(query: str, max_results: int = 30) -> dict:
        """Search repositories.

        Args:
            query: Words to search for.
            max_results: How many to return, at most 100.
        """
        if max_results > 100:
            raise ToolError(f"max_results is {max_results}; at most 100 are returned")
        items = [
            {
                "name": f"{query.split()[0].lower()}-{number}",
                "stars": (number * 37) % 211,
                "language": LANGUAGES[number % len(LANGUAGES)],
                "html_url": f"https://example.org/{number}",
                "description": "A repository like many others. " * 20,
            }
            for number in range(max_results)
        ]
        return {"total_count": len(items), "items": items}

    return server


def filesystem() -> MCPServer:
    server = MCPServer("filesystem-like")

    @server.tool()
    def read(path: str) -> str:
        """Read a file as text."""
        table = io.StringIO()
        writer = csv.writer(table)
        if path == "/data/customer_churn.csv":
            writer.writerow(["age", "visits", "complaints", "churn"])
            for number in range(400):
                visits, complaints = number * 7 % 23, number * 5 % 11
                writer.writerow([18 + number * 13 % 60, visits, complaints, int(complaints * 3 > visits)])
            return table.getvalue()
        if path != "/data/sales.csv":
            raise ToolError(f"{path} does not exist")
        writer.writerow(["date", "product", "amount", "region"])
        for number in range(500):
            writer.writerow([f"2024-{number % 12 + 1:02}-01", f"product-{number % 7}", number % 90, "north"])
        return table.getvalue()

    @server.tool()
    def read_csv(path: str) -> list[dict]:
        """Read a table as a list of rows."""
        if path != "/data/sales_2024.csv":
            raise ToolError(f"{path} does not exist")
        return [
            {"month": number % 12 + 1, "product": f"product-{number % 7}", "revenue": 100 + number % 90}
            for number in range(120)
        ]

    return server


def meeting() -> MCPServer:
    server = MCPServer("meeting")
    present = asyncio.Condition()
    guests = 0

    @server.tool()
    async def meet(number: int, expected: int) -> dict:
        """Wait until `expected` callers are here."""
        nonlocal guests
        async with present:
            guests += 1
            present.notify_all()
            await present.wait_for(lambda: guests >= expected)
        return {"number": number, "guests": guests}

    return server


if __name__ == "__main__":
    {"github": github, "filesystem": filesystem, "meeting": meeting}[sys.argv[1]]().run("stdio")
