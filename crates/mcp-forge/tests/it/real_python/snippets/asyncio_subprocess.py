# Children of an event loop, with pipes both ways.
import asyncio

async def reverse(text):
    child = await asyncio.create_subprocess_exec("rev", stdin=-1, stdout=-1)
    output, _ = await child.communicate(text.encode())
    return output.decode().strip()

await asyncio.gather(*map(reverse, ["one", "two", "three"])) == ["eno", "owt", "eerht"]
