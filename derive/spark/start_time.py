"""How long Spark takes to start: what was measured on this machine is remembered beside the archive of its classes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import orjson

from derive.spark.java import archive_folder

UNPREPARED, PREPARED = 10.5, 6.0
"""Seconds until Spark's workers are ready, on two cores, without and with an archive, where nobody has measured it."""

_MOST = 1.5
"""How many times as long a start is thought to take at most: one on a busy machine says nothing of the next."""


def start_seconds(master: str | None, folder: Path | None = None) -> float:
    """Seconds that Spark will take to start.

    Args:
        master: Spark master URL; None for this machine's cores.
        folder: where it is remembered; None for beside the archive.
    """
    folder = folder or archive_folder()
    usual = PREPARED if any(folder.glob("*.jsa")) else UNPREPARED
    with suppress(OSError, ValueError, KeyError, TypeError):
        return min(float(orjson.loads(_file(folder).read_bytes())[master or ""]), _MOST * usual)
    return usual


def remember_start(master: str | None, seconds: float, folder: Path | None = None) -> None:
    """Remember how long a start has taken, if that can be written; one that was slow counts for half."""
    folder = folder or archive_folder()
    known: dict[str, float] = {}
    with suppress(OSError, ValueError):
        known = orjson.loads(_file(folder).read_bytes())
    before = start_seconds(master, folder)
    known[master or ""] = round(min(seconds, (seconds + before) / 2), 2)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _file(folder).write_bytes(orjson.dumps(known))


def forget_starts(folder: Path | None = None) -> None:
    """Forget all of it: from now on Spark starts in another time."""
    _file(folder or archive_folder()).unlink(missing_ok=True)


def _file(folder: Path) -> Path:
    return folder / "spark-start.json"
