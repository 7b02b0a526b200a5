"""Processes timed from their start to their end.

An installed program compiles its modules once, so these processes cache compiled modules, whatever the bench's own
setting is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended successfully.

    Attributes:
        seconds: seconds from its start to its end.
        output: text of standard output, unless it went to a file.
    """

    seconds: float
    output: str


def flowctl(*arguments: str) -> list[str]:
    """Return the command line of a `flowctl` command."""
    return [sys.executable, "-c", _FLOWCTL, *arguments]


def module(name: str, *arguments: str) -> list[str]:
    """Return the command line of a module of the bench."""
    return [sys.executable, "-m", name, *arguments]


def run(command: list[str], output: Path | None = None) -> Ended:
    """Run a process to its end.

    Args:
        command: its command line.
        output: the file for standard output; None to return the text.

    Raises:
        SystemExit: the process failed.
    """
    with Path(output or "/dev/null").open("wb") as file:
        begun = time.perf_counter()
        stdout = file if output else subprocess.PIPE
        done = subprocess.run(command, cwd=ROOT, env=_ENV, stdout=stdout, stderr=subprocess.PIPE, check=False)
        seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr.decode()[-2000:]}")
    return Ended(seconds, "" if output else done.stdout.decode())


def end(process: subprocess.Popen[Any], number: signal.Signals = signal.SIGTERM, patience: float = 120) -> None:
    """End a process by a signal, and kill it if it does not end within `patience` seconds.

    Ctrl-C would not work: a shell's background jobs and their children ignore it.

    Raises:
        SystemExit: the process had to be killed.
    """
    process.send_signal(number)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SystemExit(f"{process.args!r} has not ended in {patience:.0f} s, and was killed") from None


def place(process: int, processors: set[int]) -> None:
    """Restrict a process and its children to some processors."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)
        for child in (thread / "children").read_text().split():
            place(int(child), processors)


def has_ended(process: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
