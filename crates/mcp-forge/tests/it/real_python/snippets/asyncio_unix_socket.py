# A server and a client on a socket of the file system.
import asyncio

async def answer(reader, writer):
    writer.write((await reader.readline()).upper())
    writer.close()

server = await asyncio.start_unix_server(answer, "/tmp/answer.sock")
reader, writer = await asyncio.open_unix_connection("/tmp/answer.sock")
writer.write(b"hello\n")
line = await reader.readline()
writer.close()
server.close()
line == b"HELLO\n"
