"""Tasks with the official SDK: it claims what a tool call answers with, and asks until the task has ended."""

import asyncio
import time
from typing import Any, Literal

from harness import completed, execute
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict, Field


class Task(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = Field("task", alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int = Field(alias="pollIntervalMs")


class TaskState(Result):
    model_config = ConfigDict(extra="allow")
    status: str
    result: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str = Field(alias="taskId")


class TaskRequest(Request[TaskParams, str]):
    method: str
    params: TaskParams
    name_param = "taskId"


class Tasks(ClientExtension):
    """What an agent's client does with the extension."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, cancels: bool = False) -> None:
        self.cancels = cancels
        self.seen: list[str] = []

    def claims(self):
        return [ResultClaim(result_type="task", model=Task, resolve=self.resolve)]

    async def resolve(self, task: Task, context: ClaimContext) -> CallToolResult:
        async def ask(method: str, answer: type[Result]):
            request = TaskRequest(method=f"tasks/{method}", params=TaskParams(taskId=task.task_id))
            return await context.session.send_request(request, answer)

        self.seen.append(task.status)
        if self.cancels:
            await ask("cancel", Result)
        while (state := await ask("get", TaskState)).status == "working":
            self.seen.append(state.status)
            await asyncio.sleep(task.poll_interval_ms / 1000)
        self.seen.append(state.status)
        if state.result is None:
            return CallToolResult(content=[], is_error=True)
        return CallToolResult.model_validate(state.result)


async def check_tasks(connect) -> None:
    """`connect` takes the SDK's arguments for a client of 2026-07-28."""
    tasks = Tasks()
    async with connect(extensions=[tasks]) as client:
        # The first turn of a new server, or one on a busy machine, may take longer than a moment.
        deadline = time.monotonic() + 60
        while True:
            tasks.seen.clear()
            assert (await completed(client, "6 * 7"))["result"] == 42
            if not tasks.seen:
                break
            assert time.monotonic() < deadline, tasks.seen
        response = await completed(client, "import time\ntime.sleep(4)\n'late'")
        assert response["result"] == "late", response
        assert tasks.seen[0] == "working" and tasks.seen[-1] == "completed", tasks.seen
    tasks = Tasks(cancels=True)
    async with connect(extensions=[tasks]) as client:
        result = await client.call_tool("execute_python", {"code": "import time; time.sleep(60)"})
        assert result.is_error and tasks.seen[-1] == "cancelled", tasks.seen
    async with connect() as client:
        assert (await execute(client, "import time\ntime.sleep(3)\n'late'"))["result"] == "late"
