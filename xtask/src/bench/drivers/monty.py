"""Answers the bench for pydantic-monty: one line of JSON in, one out.

Each run checks a session out of the pool of worker processes, as its documentation shows. The tools
are functions of this process: there is no MCP between, which makes them quicker than any that has it.
"""

import json
import sys
import time

import pydantic_monty

LARGE = "x" * 10_000_000

TOOLS = {"bench_echo": lambda text: text, "bench_large": lambda: LARGE}


def run(pool, request):
    tools = TOOLS if request["tools"] else None
    started = time.perf_counter()
    with pool.checkout() as session:
        answer = session.feed_run(request["code"], external_lookup=tools)
        taken = time.perf_counter() - started
    return {"us": taken * 1e6, "result": str(answer)}


def main():
    with pydantic_monty.Monty() as pool:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            try:
                reply = run(pool, json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), flush=True)


main()
