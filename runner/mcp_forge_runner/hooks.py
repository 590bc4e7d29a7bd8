"""Adjusts a few modules right after user code imports them, and never imports one itself.

A finder at the front of `sys.meta_path` looks only at the names in its table; all else passes.
"""

from .originals import BUILTINS as __builtins__

import sys


class AfterImport:
    """A finder that finds nothing, but runs an action once a named module is loaded."""

    def __init__(self) -> None:
        self.actions = {}

    def __repr__(self) -> str:
        return "<mcp_forge: adjusts " + ", ".join(self.actions) + ">"

    def find_spec(self, name, path=None, target=None):
        """Answers for the names in the table, with the spec of the finder that knows them."""
        if name not in self.actions:
            return None
        spec = None
        for finder in list(sys.meta_path):
            if finder is not self and spec is None:
                spec = finder.find_spec(name, path, target)
        if spec is not None:
            self.watch(spec.loader)
        return spec

    def watch(self, loader) -> None:
        """Lets the loader run the module's action after the module's own code."""
        if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return
        load = loader.exec_module

        def exec_module(module):
            load(module)
            self.adjust(module.__name__, module)

        loader.exec_module = exec_module

    def adjust(self, name: str, module) -> None:
        """Runs the action for a loaded module. A module that is not as expected stays as it is."""
        action = self.actions.get(name)
        if action is None:
            return
        try:
            action(module)
        except Exception:
            return


finder = AfterImport()


def install() -> None:
    """Puts the finder in place. Called once."""
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


def adjust_after_import(actions: dict) -> None:
    """Sets what happens to which module; modules that are loaded already are adjusted now."""
    finder.actions = actions
    for name in actions:
        module = sys.modules.get(name)
        if module is not None:
            finder.adjust(name, module)
