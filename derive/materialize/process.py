"""The process of a connector: starts on first use, prints its address, and ends at the latest with this process."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO

from derive.errors import TaskError
from derive.storage.metadata.process import is_stopped

_ADDRESS = re.compile(r"[^\s/]+:[0-9]{1,5}")
_START_SECONDS = 60.0
_GRACE_SECONDS = 8.0
_LOOK_SECONDS = 0.5
_LINES = 20
_LINE_CHARACTERS = 500


class ConnectorProcess:
    """A running program that serves a connector and has printed its address.

    Its standard input is a pipe without data: the pipe is closed when this process ends, and then the program ends.

    Args:
        name: name in messages.
        command: the program and its arguments.
        folder: working folder.
        env: environment.
        seconds: maximum time until the address is printed.
        report: function called with each line of standard error.
        should_wait: function called repeatedly during the start; if it returns False, the start ends with an error.

    Attributes:
        address: `host:port` of the server.

    Raises:
        TaskError: the program cannot be started, or does not print an address; the error has its last output.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        *,
        seconds: float = _START_SECONDS,
        report: Callable[[str], None] = lambda line: None,
        should_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name, self._report = name, report
        self._output: deque[str] = deque(maxlen=_LINES)
        try:
            self._process = Popen(
                command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=dict(env),
                # The program has another process group, so that Ctrl-C ends only this process, which then ends the
                # program. The program stays in the same session, because Linux may divide processors among
                # sessions.
                process_group=0,
            )
        except OSError as exc:
            raise TaskError(f"{name} cannot be started: {exc.strerror or exc}") from exc
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        addresses: SimpleQueue[str | None] = SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read_output, args=(self._process.stdout, addresses), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.address = self._wait_for(addresses, seconds, should_wait)

    @property
    def ended(self) -> int | None:
        """Return the exit code of the process; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """Return the last lines of standard error, and of standard output after the address."""
        return "\n".join(self._output)

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process until another signal continues it."""
        return is_stopped(self._process.pid)

    def death(self, seconds: float = 0.0) -> str | None:
        """Return how the process ended, with its last output; None if it still runs after `seconds`."""
        with suppress(TimeoutExpired):
            self._process.wait(seconds)
        if self.ended is None:
            return None
        for reader in self._readers:
            reader.join(1.0)  # until its last output is read
        ended = f"{self._name} has ended ({_code(self._process.returncode)})"
        return f"{ended}:\n{self.output}" if self.output else ended

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(0 if self.is_stopped else _GRACE_SECONDS / 2)
                break
            except TimeoutExpired:
                end()
        self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for stream in (self._process.stdout, self._process.stderr):
            with suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()

    def _wait_for(self, addresses: SimpleQueue[str | None], seconds: float, should_wait: Callable[[], bool]) -> str:
        until = time.monotonic() + seconds
        while should_wait() and (left := until - time.monotonic()) > 0:
            with suppress(Empty):
                address = addresses.get(timeout=min(left, _LOOK_SECONDS))
                if address is None:
                    break
                return address
        death = self.death(1.0)
        self.close()
        late = f"{self._name} did not print its address within {seconds:g} s"
        last_words = f"{late}:\n{self.output}" if self.output else late
        raise TaskError(death.replace(" has ended", " ended before it was ready", 1) if death else last_words)

    def _read_output(self, stream: IO[bytes], addresses: SimpleQueue[str | None]) -> None:
        for line in _lines(stream):
            if _ADDRESS.fullmatch(line):
                addresses.put(line)
            else:
                self._output.append(line)
        addresses.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        for line in _lines(stream):
            self._output.append(line)
            self._report(line)


def _lines(stream: IO[bytes]) -> Iterator[str]:
    with suppress(OSError, ValueError):  # `close` has closed the stream
        for line in stream:
            text = line.decode("utf-8", "replace").strip()
            if text:
                yield text[:_LINE_CHARACTERS]


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


def installed_command(connector: str) -> list[str]:
    """Return the command that serves a connector that is installed here."""
    # `-P`: no modules are imported from the working folder, which belongs to a catalog.
    return [sys.executable, "-P", "-m", "derive.cli.main", "connector", "serve", connector, "--listen", "127.0.0.1:0"]


def installed_env() -> dict[str, str]:
    """Return an environment with this process's import path."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def guarded_command(command: Sequence[str]) -> list[str]:
    """Return a command that runs a program and ends it when this process ends."""
    return [sys.executable, "-I", str(Path(__file__).with_name("parent_watchdog.py")), *command]
