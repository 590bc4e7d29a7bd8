"""What a session holds: variables, functions, classes, imports, files and threads."""

from .originals import BUILTINS as __builtins__

import sys
from _thread import get_ident
from itertools import islice
from operator import itemgetter
from posix import scandir
from stat import S_ISDIR, S_ISREG
from time import monotonic, thread_time

from .bindings import names_of
from .channel import well_formed
from .portraits import (
    MAX_NAME,
    FunctionType,
    ModuleType,
    class_module,
    class_qualname,
    describe,
    exact_text,
    field,
    inherits,
    module_dict,
    own_dict,
    type_text,
)

MAX_NAMES = 1000
MAX_THREADS = 100
MAX_DEPTH, MAX_PATH = 16, 1000
# Of all `repr`s and column names together; with escapes a frame holds six times as much.
MAX_CHARS = 1 << 20
# Of what a file tree can hold, at most this many times as many entries are looked at as are told.
ENTRIES_A_FILE = 20
CHECK_EVERY = 16
# Seconds by the clock after which a look says what it has; half as many more for the files. The server waits for 5.
PATIENCE = 2.0
function_globals = FunctionType.__dict__["__globals__"].__get__
BuiltinType = type(len)


def inspect(session, bounds: dict, listed=None) -> dict:
    """The answer to an `inspect` request. `listed` are the files, if they are known."""
    seconds = bounds["budget_ms"] / 1000
    budget = Budget(seconds)
    holdings = Holdings(session)
    variables, omitted = holdings.describe_variables(bounds, budget)
    # Variables that took all the time leave some for the files.
    budget.extend(seconds / 2, PATIENCE / 2)
    files, omitted_files = listed or list_files(session.workspace, bounds["files"], budget)
    named = [*holdings.variables, *holdings.functions, *holdings.classes]
    changes = session.bindings.take_changes(named)
    return {
        "type": "inspected",
        "variables": variables,
        "functions": holdings.functions[:MAX_NAMES],
        "classes": holdings.classes[:MAX_NAMES],
        "imports": dict(list(holdings.imports.items())[:MAX_NAMES]),
        "files": files,
        "changes": {kind: names[:MAX_NAMES] for kind, names in changes.items()},
        "omitted_variables": omitted,
        "omitted_files": omitted_files,
        "threads": thread_names()[:MAX_THREADS],
    }


def nothing_known() -> dict:
    """The answer where nothing can be said."""
    empty = {"variables": [], "functions": [], "classes": [], "imports": {}, "files": [], "threads": []}
    changes = {"added": [], "rebound": [], "removed": []}
    return {"type": "inspected", **empty, "changes": changes, "omitted_variables": 0, "omitted_files": 0}


class Budget:
    """The time that a look may take: the processor's, which does not pass while others have it."""

    def __init__(self, seconds: float, patience: float = PATIENCE) -> None:
        self.work, self.clock = thread_time() + seconds, monotonic() + patience

    def extend(self, seconds: float, patience: float) -> None:
        """Leaves at least that much from now on."""
        self.work = max(self.work, thread_time() + seconds)
        self.clock = max(self.clock, monotonic() + patience)

    def is_spent(self) -> bool:
        return thread_time() > self.work or monotonic() > self.clock


class Holdings:
    """The user's names, newest first, by what they are."""

    def __init__(self, session) -> None:
        self.namespace = names_of(session.module.__dict__)
        self.main = session.module.__dict__
        self.bindings = session.bindings
        self.offered = session.toolbox.offered
        self.variables, self.functions, self.classes, self.imports = [], [], [], {}
        known = self.bindings.bindings
        bound = [name for name in self.namespace if name in known]
        places = {name: place for place, name in enumerate(bound)}
        names = [name for name in bound if self.is_shown(name)]
        names.sort(key=lambda name: (known[name].stamp, places[name]), reverse=True)
        for name in names:
            self.sort_in(name, self.namespace[name])

    def is_shown(self, name) -> bool:
        """Whether a name is the user's, and not the shell's or a tool's."""
        if len(name) > MAX_NAME:
            return False
        value = self.namespace[name]
        if self.offered.get(name, self) is value:
            return False
        return self.bindings.is_users(name, value) and not name.startswith("__")

    def sort_in(self, name: str, value) -> None:
        kind = type(value)
        shown = well_formed(name)
        if kind is FunctionType and function_globals(value) is self.main:
            self.functions.append(shown)
        elif kind is FunctionType:
            self.imports[shown] = dotted(function_globals(value).get("__name__"), field(value, "__qualname__"))
        elif kind is BuiltinType:
            self.imports[shown] = dotted(field(value, "__module__"), field(value, "__qualname__"))
        elif inherits(kind, ModuleType):
            self.imports[shown] = exact_text(module_dict(value).get("__name__")) or "?"
        elif inherits(kind, type):
            self.sort_class(shown, value)
        else:
            self.variables.append(name)

    def sort_class(self, name: str, value) -> None:
        if class_module(value) == "__main__":
            self.classes.append(name)
        else:
            self.imports[name] = dotted(class_module(value), class_qualname(value))

    def describe_variables(self, bounds: dict, budget: Budget):
        """The variables, of which those beyond a bound are only named, and how many are not."""
        told, room, late = [], MAX_CHARS, False
        for place, name in enumerate(self.variables[: bounds["variables"]]):
            if place % CHECK_EVERY == 0:
                late = late or room < 0 or budget.is_spent()
            value = self.namespace[name]
            facts = {"type": type_text(type(value))} if late else describe(value, bounds["repr_chars"])
            room -= len(facts.get("repr", "")) + sum(map(len, facts.get("dtypes", ())))
            entry = {"name": well_formed(name), **tidy(facts)}
            execution_id = self.bindings.bindings[name].execution_id
            if execution_id is not None:
                entry["execution_id"] = execution_id
            told.append(entry)
        return told, len(self.variables) - len(told)


def tidy(facts: dict) -> dict:
    """The facts as the protocol wants them: text well formed, no empty field."""
    facts["type"] = well_formed(facts["type"])
    if "repr" in facts:
        facts["repr"] = well_formed(facts["repr"])
    if "dtypes" in facts:
        facts["dtypes"] = {well_formed(name): text for name, text in facts["dtypes"].items()}
    return facts


def dotted(module, name) -> str:
    """Where something comes from: `os.path.join`."""
    parts = [exact_text(module) or "?", exact_text(name) or "?"]
    return well_formed(".".join(parts)[:MAX_NAME])


def thread_names() -> list:
    """Names of the live threads beside the main one; the runner's own has none between turns."""
    threading = sys.modules.get("threading")
    active = getattr(threading, "_active", None)
    active = dict(active) if type(active) is dict else {}
    main = get_ident()
    names = []
    for ident in sys._current_frames():
        if ident != main:
            names.append(thread_name(active.get(ident)))
    return names


def thread_name(thread) -> str:
    """Without the property `name`, which a subclass may have made its own."""
    name = exact_text(own_dict(thread).get("_name"))
    return well_formed(name[:MAX_NAME]) or "unnamed"


def list_files(workspace: str, count: int, budget: Budget):
    """Regular files below the workspace, links not followed, and how many are left out."""
    files, omitted = [], 0
    entries_left = ENTRIES_A_FILE * count + MAX_NAMES
    directories = [("", 0)]
    while directories and entries_left > 0 and not budget.is_spent():
        path, depth = directories.pop(0)
        entries = list_directory(f"{workspace}/{path}", entries_left)
        entries_left -= len(entries)
        for name, status in entries:
            if S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                directories.append((f"{path}{name}/", depth + 1))
            elif S_ISREG(status.st_mode) and len(files) < count and len(path) < MAX_PATH:
                files.append(file_state(path + name, status))
            elif S_ISREG(status.st_mode):
                omitted += 1
    # Of a directory that there was no time for it is not known what is in it.
    return files, omitted + len(directories)


def list_directory(path: str, limit: int) -> list:
    """At most `limit` entries of a directory by name, with what they are themselves."""
    try:
        with scandir(path) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(entries, limit)]
    except OSError:
        return []  # it is gone, or not ours to read
    return sorted(found, key=itemgetter(0))


def file_state(path: str, status) -> dict:
    return {"path": well_formed(path), "size": status.st_size, "modified_ns": max(status.st_mtime_ns, 0)}
