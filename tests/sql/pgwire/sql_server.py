"""`flowctl sql serve` over an empty data folder, in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forked_flowctl import Flowctl
from patience import PATIENCE_SECONDS


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """A server of SQL over an empty data folder, which says nothing on its standard error but that it serves."""
    command = ["sql", "serve", "--listen", "127.0.0.1:0", "--data", str(folder)]
    process = Flowctl(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout
    assert process.stderr
    try:
        yield int(process.stdout.readline().rpartition(":")[2])
        assert process.poll() is None
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert errors.splitlines()[1:] == []
