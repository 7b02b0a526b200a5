"""The monitor of a process: its samples, and whether it is ready to work.

A process begins with a monitor that is not ready. The parts of the process add their samples and their readiness when
they begin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from derive.errors import FlowError
from derive.instruments import Sample, SampleSource
from derive.metrics.definitions import INFO, PROCESS_CPU, PROCESS_FILES, PROCESS_MEMORY, PROCESS_START

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of a process: the answer to the question if it can do its work now.

    Attributes:
        is_ready: whether the process can do its work.
        reason: the reason, for people.
    """

    is_ready: bool
    reason: str


ReadinessSource: TypeAlias = Callable[[], Readiness]


class Monitor:
    """The samples and the readiness of a process.

    Args:
        command: the command of the process, such as `run`.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._sources: list[SampleSource] = []
        self._readiness: ReadinessSource = lambda: Readiness(False, "starting")
        self._trouble = ""

    def add(self, source: SampleSource) -> None:
        """Add the samples of a part of the process."""
        self._sources.append(source)

    def begin(self, readiness: ReadinessSource) -> None:
        """Report from now on the readiness that a function returns."""
        self._readiness = readiness

    def end(self) -> None:
        """Report that the process ends, and drop the parts that it closes."""
        self._sources = []
        self._readiness = lambda: Readiness(False, "ending")

    @contextmanager
    def troubled(self, reason: str) -> Iterator[None]:
        """Report, while the block runs, that the process cannot work for a reason."""
        self._trouble = reason
        try:
            yield
        finally:
            self._trouble = ""

    def readiness(self) -> Readiness:
        """Return whether the process is ready, and why."""
        return Readiness(False, self._trouble) if self._trouble else self._readiness()

    def samples(self) -> Iterator[Sample]:
        """Yield all samples; a part whose samples cannot be read now is left out."""
        for source in self._sources:
            samples: list[Sample] = []
            with suppress(FlowError):  # the data folder is busy, or damaged, which the process itself reports
                samples = list(source())
            yield from samples
        yield from process_samples(self._command)


def process_samples(command: str) -> Iterator[Sample]:
    """Yield the samples of this process; values that the system does not report are left out.

    Args:
        command: the command of the process.
    """
    yield Sample(INFO, 1, (command, version("derive-flow")))
    yield Sample(PROCESS_CPU, time.process_time())
    with suppress(OSError, ValueError, IndexError):
        pages = int((_PROC / "statm").read_text().split()[1])
        yield Sample(PROCESS_MEMORY, pages * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError):
        yield Sample(PROCESS_FILES, len(os.listdir(_PROC / "fd")))
    with suppress(OSError, ValueError, IndexError):
        yield Sample(PROCESS_START, _started())


def _started() -> float:
    """Return the time when this process started, in seconds since 1970."""
    fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])  # field 22 of proc(5), since the start of the machine
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
