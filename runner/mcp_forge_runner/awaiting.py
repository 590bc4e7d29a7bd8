"""Everything that needs asyncio, which is loaded only when the code awaits."""

from .originals import BUILTINS as __builtins__

import asyncio

CO_COROUTINE = 0x80
# How long tasks that ignore their cancellation are waited for, in seconds.
PATIENCE = 1.0


def run(codes: list, namespace: dict, at_end):
    """Runs code objects of which at least one awaits, in one event loop; the last one's value.

    `at_end(problem)` is called while the loop still runs.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(evaluate(codes, namespace, at_end))
    finally:
        wind_down(loop)


async def evaluate(codes: list, namespace: dict, at_end):
    value = None
    try:
        for code in codes:
            value = eval(code, namespace)
            if code.co_flags & CO_COROUTINE:
                value = await value
    except BaseException as problem:
        at_end(problem)
        raise
    at_end(None)
    return value


def wind_down(loop) -> None:
    """Cancels what is left and closes the loop. Threads of executors are not waited for."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), PATIENCE))
    except Exception:
        # The user's own loop tricks, or generators that refuse to end: the process ends soon.
        pass
    finally:
        asyncio.set_event_loop(None)
        if not loop.is_running():
            loop.close()


async def wait_for_answer(call, channel, values: dict):
    """Makes a tool call and suspends the task until its answer is there."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(answer):
        if not future.done():
            future.set_result(answer)

    def deliver(answer):
        try:
            loop.call_soon_threadsafe(settle, answer)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits any more.
            pass

    call.start(channel, values, deliver)
    return call.result(await future)
