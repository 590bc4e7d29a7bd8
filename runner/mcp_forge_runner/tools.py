"""The granted tools as Python callables, made from data: no source text is generated."""

from .originals import BUILTINS as __builtins__

from _thread import allocate_lock

from . import arguments
from .channel import Closed, TooLarge
from .media import from_value
from .offered import ToolError

CHILD_MESSAGE = "tools can be called only from the process that runs the code, not from a child of it"
OVER_MESSAGE = "the turn is over; tools can no longer be called"
LOST_MESSAGE = "the connection to the server was lost before the answer came"
TOO_LARGE_MESSAGE = "the arguments are too large: over 16 MiB as JSON"


class Tool:
    """A tool of an MCP server. Call it like a function, or `await tool.aio(...)`.

    `help(tool)` shows its parameters; several `aio` calls in `asyncio.gather` run in parallel.
    """

    __module__ = "mcp_forge"

    def __init__(self, stub: dict, channel) -> None:
        self.__name__ = self.__qualname__ = stub["name"]
        self.__doc__ = stub["doc"]
        self.__module__ = "__main__"
        self.__annotations__ = {
            **{parameter["name"]: parameter["annotation"] for parameter in stub["parameters"]},
            "return": stub["returns"],
        }
        self._parameters = {parameter["name"]: parameter for parameter in stub["parameters"]}
        self._channel = channel

    @property
    def __signature__(self):
        """For `inspect.signature`; built when asked for, because `inspect` is slow to load."""
        from inspect import Parameter, Signature

        parameters = [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if parameter["required"] else parameter.get("default"),
                annotation=parameter["annotation"],
            )
            for name, parameter in self._parameters.items()
        ]
        return Signature(parameters, return_annotation=self.__annotations__["return"])

    def __call__(self, /, *args, **kwargs):
        call = Call(self.__name__)
        call.start(self._channel, self._bind(args, kwargs))
        return call.wait()

    def aio(self, /, *args, **kwargs):
        """The same call as an awaitable: `await tool.aio(...)`, `asyncio.gather(...)`."""
        # Outside the coroutine, so that a wrong argument is an error on the line that has it.
        return self._call_soon(self._bind(args, kwargs))

    async def _call_soon(self, values: dict):
        from .awaiting import wait_for_answer

        return await wait_for_answer(Call(self.__name__), self._channel, values)

    def __repr__(self) -> str:
        return f"<tool {self._describe()}; await {self.__name__}.aio(...) to call it asynchronously>"

    def summary(self) -> str:
        """Signature and first line of the documentation."""
        first = (self.__doc__ or "").strip().split("\n", 1)[0]
        return f"{self._describe()}: {first}" if first else self._describe()

    def _describe(self) -> str:
        """The signature as Python would write it."""
        parameters = []
        for name, parameter in self._parameters.items():
            text = f"{name}: {parameter['annotation']}"
            if not parameter["required"]:
                text += f" = {parameter.get('default')!r}"
            parameters.append(text)
        return f"{self.__name__}({', '.join(parameters)}) -> {self.__annotations__['return']}"

    def __reduce__(self):
        raise TypeError(f"{self.__name__} is a tool: it cannot be sent to another process")

    def _bind(self, args: tuple, kwargs: dict) -> dict:
        """The arguments by schema key. Only what the caller passed is sent."""
        given = dict(zip(self._parameters, args))
        if len(args) > len(self._parameters):
            self._refuse(f"takes {len(self._parameters)} arguments but {len(args)} were given")
        for name, value in kwargs.items():
            if name not in self._parameters:
                self._refuse(f"has no parameter {name!r}{self._similar(name)}")
            if name in given:
                self._refuse(f"got two values for {name!r}")
            given[name] = value
        missing = [name for name in self._parameters if self._is_missing(name, given)]
        if missing:
            self._refuse("needs " + ", ".join(map(repr, missing)))
        return {
            self._parameters[name]["key"]: arguments.to_plain(value, f"{self.__name__}(): {name}")
            for name, value in given.items()
            if not self._is_omitted(self._parameters[name], value)
        }

    def _is_missing(self, name: str, given: dict) -> bool:
        return self._parameters[name]["required"] and name not in given

    def _is_omitted(self, parameter: dict, value) -> bool:
        """None for an optional parameter that cannot be null means: use the tool's default."""
        return value is None and not parameter["required"] and not allows_none(parameter)

    def _similar(self, name: str) -> str:
        from difflib import get_close_matches

        close = get_close_matches(name, self._parameters, 1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _refuse(self, problem: str):
        raise TypeError(f"{self.__name__}() {problem}. Signature: {self._describe()}") from None


class Call:
    """One call on its way: its answer arrives on the channel's reader thread."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.answer = None
        self.answered = allocate_lock()
        self.answered.acquire()

    def start(self, channel, values: dict, deliver=None) -> None:
        """Sends the call. Raises `ToolError` if it was not sent."""
        try:
            channel.call(self.tool, values, deliver or self.deliver)
        except Closed:
            message = OVER_MESSAGE if channel.in_owner() else CHILD_MESSAGE
            raise ToolError(message, "not_granted", self.tool) from None
        except TooLarge:
            raise ToolError(TOO_LARGE_MESSAGE, "invalid_arguments", self.tool) from None
        except OSError:
            raise ToolError(LOST_MESSAGE, "upstream", self.tool) from None
        except RuntimeError as problem:  # no thread can be started
            raise ToolError(f"the call could not be made: {problem}", "limit", self.tool) from None

    def deliver(self, answer) -> None:
        self.answer = answer
        self.answered.release()

    def wait(self):
        """The tool's value, or its `ToolError`."""
        self.answered.acquire()
        return self.result(self.answer)

    def result(self, answer):
        """What an answer means for the caller."""
        if answer is None:
            raise ToolError(LOST_MESSAGE, "upstream", self.tool)
        failure = answer.get("error")
        if failure is not None:
            raise ToolError(failure["message"], failure["kind"], self.tool)
        return from_value(answer["ok"])


def allows_none(parameter: dict) -> bool:
    """Whether the annotation lets the caller pass None: `None`, `Optional[...]` or `Any`."""
    annotation = parameter["annotation"]
    outside = annotation
    while "[" in outside:
        start = outside.rindex("[")
        outside = outside[:start] + outside[outside.find("]", start) + 1 or len(outside) :]
    alternatives = [part.strip() for part in outside.split("|")]
    return "None" in alternatives or "Any" in alternatives or annotation.startswith("Optional[")
