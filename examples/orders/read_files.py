# What the agent of `mcp-forge demo` sends: a year of shop orders, read through a tool, checked here.
import asyncio, csv, io

FOLDER = "/path/to/orders"

listing = filesystem_list_directory(path=FOLDER)
names = sorted(line.removeprefix("[FILE] ") for line in listing.splitlines() if line.startswith("[FILE] "))


async def read(name):
    text = await filesystem_read_text_file.aio(path=f"{FOLDER}/{name}")
    print(f"{name}: {len(text):,} characters", flush=True)
    return list(csv.DictReader(io.StringIO(text)))


