"""Runs of the catalog's tests for pages, one at a time, each in a process of its own.

Tests run code of the catalog. The process is `flowctl test`, so a page shows what the command shows, and a test that
hangs or crashes harms no page.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from derive.document.exact import parse_exact
from derive.errors import UsageError
from derive.protocol.specs import CatalogSpec, TestSpec
from derive.ui.folder import Folder

_MOST_SECONDS = 600
_END_SECONDS = 5
_MOST_CHARACTERS = 100_000
"""Number of characters of the log that are kept, the last ones."""


@dataclass(slots=True)
class TestRun:
    """A run of tests.

    Attributes:
        names: names of the tests, in the order of the catalog.
        results: rows of `flowctl test -o json`, by the name of the test; those of tests that have ended.
        log: notes and errors of the command.
        is_over: whether the run has ended.
    """

    __test__ = False  # pytest would collect a class of this name as a test

    names: Sequence[str]
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    log: str = ""
    is_over: bool = False

    @property
    def failed(self) -> int:
        """Return the number of tests that have failed."""
        return sum(not row["passed"] for row in list(self.results.values()))  # a thread adds rows


class TestRuns:
    """The tests of a catalog, and their last run.

    Args:
        folder: the catalog and its data folder; the data are not used.
    """

    __test__ = False

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self._ended = threading.Condition(self._turn)
        self._loaded: tuple[CatalogSpec, Mapping[str, TestSpec]] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self.last: TestRun | None = None

    def tests(self) -> Mapping[str, TestSpec]:
        """Return the tests by name; they are loaded again after an edit.

        Raises:
            CatalogError: the catalog, or a test, is wrong.
        """
        from derive.catalog import load

        catalog = self._folder.catalog()
        if not self._folder.has_catalog:
            return {}
        with self._turn:
            if self._loaded is None or self._loaded[0] is not catalog:
                self._loaded = catalog, load(self._folder.source).tests
            return self._loaded[1]

    def begin(self, name: str | None) -> None:
        """Begin a run; a run that has not ended continues instead.

        Args:
            name: name of the only test; None for all.

        Raises:
            CatalogError: the catalog, or a test, is wrong.
            UsageError: the test is unknown.
        """
        known = self.tests()
        if name is not None and name not in known:
            raise UsageError(f"the catalog has no test '{name}'")
        with self._turn:
            if self._process is not None or self._is_closed:
                return
            command = [sys.executable, "-P", "-m", "derive.cli.main", "test", "--source", str(self._folder.source)]
            chosen = [] if name is None else [f"--name={name}"]
            pipe = subprocess.PIPE
            # A session of its own, so that Ctrl-C of the server does not reach it before `close`.
            process = subprocess.Popen(
                [*command, *chosen, "-o", "json"], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
                encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
            run = TestRun(tuple(known) if name is None else (name,))
            self._process, self.last = process, run
        limit = _timer(_MOST_SECONDS, lambda: _interrupt(process))
        for work in (partial(self._read_results, limit=limit), self._read_log):
            threading.Thread(target=work, args=(process, run), name="tests", daemon=True).start()

    def wait(self) -> None:
        """Wait until no run is in progress."""
        with self._ended:
            self._ended.wait_for(lambda: self._process is None)

    def stop(self) -> None:
        """Stop a run like Ctrl-C."""
        if (process := self._process) is not None:
            _interrupt(process)

    def close(self) -> None:
        """End a run, and wait until it has removed its data folders, for some seconds."""
        with self._turn:
            self._is_closed, process = True, self._process
        if process is not None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()

    def _read_results(self, process: subprocess.Popen[str], run: TestRun, limit: threading.Timer) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # a process that is killed leaves half a line
                    row = parse_exact(line.encode())
                    run.results[row["test"]] = row
        process.wait()
        limit.cancel()
        with self._turn:
            run.is_over, self._process = True, None
            self._ended.notify_all()

    def _read_log(self, process: subprocess.Popen[str], run: TestRun) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                run.log = (run.log + line)[-_MOST_CHARACTERS:]


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End a process like Ctrl-C, so that it removes its data folders; kill the process if it continues."""
    process.send_signal(signal.SIGINT)
    _timer(_END_SECONDS, process.kill)


def _timer(seconds: float, work: Callable[[], None]) -> threading.Timer:
    """Start and return a timer that does not keep the server from ending."""
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer
