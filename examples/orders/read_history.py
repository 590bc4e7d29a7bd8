# What the agent of `mcp-forge demo` sends: a year of shop orders, read out of a Git repository
# through a tool, checked here.
import asyncio, csv, io

FOLDER = "/path/to/orders"

names = sorted(history_git_show(repo_path=FOLDER, revision="HEAD^{tree}").split())


async def read(name):
    text = await history_git_show.aio(repo_path=FOLDER, revision=f"HEAD:{name}")
    print(f"{name}: {len(text):,} characters", flush=True)
    return list(csv.DictReader(io.StringIO(text)))


