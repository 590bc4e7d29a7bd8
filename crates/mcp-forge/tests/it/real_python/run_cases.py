"""Runs one module of CPython's own test suite in this process, as `python -m test` would.

Appends one JSON line a test case to a file, before and after it ran, so that a crash loses nothing.
"""

import json
import os
import sys
import unittest

# Cases that wait for ever for a thread that fails without a network.
LEFT_OUT = ["test_listen_*"]


class Recorder(unittest.TestResult):
    """Writes down how each case ended, under its id; a second case of that id gets a number."""

    def __init__(self, prefix, file) -> None:
        super().__init__()
        self.prefix = prefix
        self.file = file
        self.seen = {}
        self.current = None
        self.status = None
        self.pid = os.getpid()

    def startTest(self, test) -> None:
        super().startTest(test)
        self.current, self.status = self.name(test), ("passed", "")
        self.write("died", "while it ran")

    def stopTest(self, test) -> None:
        super().stopTest(test)
        self.write(*self.status)
        self.current = None

    def addError(self, test, problem) -> None:
        self.note(test, "failed", problem[1])

    def addFailure(self, test, problem) -> None:
        self.note(test, "failed", problem[1])

    def addSubTest(self, test, subtest, problem) -> None:
        if problem is not None:
            self.note(test, "failed", problem[1])

    def addSkip(self, test, reason) -> None:
        # A skipped subtest does not undo the failure of another one.
        if self.status is None or self.status[0] != "failed":
            self.note(test, "skipped", reason)

    def addExpectedFailure(self, test, problem) -> None:
        self.note(test, "passed", "as it should, by failing")

    def addUnexpectedSuccess(self, test) -> None:
        self.note(test, "failed", "it should have failed")

    def note(self, test, status, detail) -> None:
        detail = f"{type(detail).__name__}: {detail}" if isinstance(detail, BaseException) else str(detail)
        if self.current is not None:
            self.status = status, detail
        else:
            # A class or a module that could not be set up.
            self.current = self.name(test)
            self.write(status, detail)
            self.current = None

    def name(self, test) -> str:
        name = test.id().replace(self.prefix, "")
        self.seen[name] = self.seen.get(name, 0) + 1
        return name if self.seen[name] == 1 else f"{name}#{self.seen[name]}"

    def write(self, status, detail) -> None:
        # A forked child of a test that did not end where it should have is not the test.
        if os.getpid() == self.pid:
            self.file.write(json.dumps([self.current, status, detail[-300:]]) + "\n")
            self.file.flush()


def main(name: str, path: str) -> None:
    from test import support
    from test.libregrtest.cmdline import _parse_args
    from test.libregrtest.setup import setup_tests

    options = _parse_args([])
    setup_tests(options)
    # None would mean all: also the network and hours of CPU time.
    support.use_resources = []
    support.verbose = False
    recorder = Recorder(f"test.{name}.", open(path, "a", encoding="utf-8"))
    support.set_match_tests(None, LEFT_OUT)

    def run(suite):
        support._filter_suite(suite, support.match_test)
        suite(recorder)

    support._run_suite = run
    try:
        module = __import__(f"test.{name}", fromlist=["_"])
        if hasattr(module, "test_main"):
            module.test_main()
        else:
            run(unittest.defaultTestLoader.loadTestsFromModule(module))
    except unittest.SkipTest as reason:
        recorder.note(unittest.FunctionTestCase(main), "skipped", str(reason))


if __name__ == "__main__":
    main(*sys.argv[1:])
