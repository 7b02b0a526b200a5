"""The other end of crash_server.py: orders that crash as often as a test wants, and then are carried out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked_flowctl import sharing_options
from hypothesis import strategies as st

from derive.failpoint import FAILPOINTS

FENCED = 3
"""The exit status of an order that somebody else has superseded."""

CRASHES = st.lists(
    st.tuples(st.sampled_from(sorted(FAILPOINTS)), st.integers(1, 6)).map(lambda each: f"{each[0]}:{each[1]}"),
    max_size=2,
)
"""At which failpoints an order is killed, one try after the other, before it is carried out."""


class CrashServer:
    """A crash server in a process of its own."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("crash_server.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            **sharing_options(),
        )

    def order(self, order: Mapping[str, Any], crashes: Sequence[str] = ()) -> None:
        """Have something done: crash at each of `crashes` that is reached, and then do it to the end."""
        for failpoint in crashes:
            assert self.attempt(order, failpoint) in (0, -signal.SIGKILL)
        assert self.attempt(order) == 0

    def attempt(self, order: Mapping[str, Any], failpoint: str = "") -> int:
        """Have something done in a process that dies or is stopped at `failpoint`, if it reaches it; its exit status."""
        return self._say({**order, "failpoint": failpoint})

    def resume(self) -> int:
        """Let the process go on that is stopped for the longest; its exit status."""
        return self._say({"do": "resume"})

    def _say(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def crash_server() -> Iterator[CrashServer]:
    found = CrashServer()
    try:
        yield found
    finally:
        found.close()
