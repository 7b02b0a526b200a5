"""The start time of Spark, measured on this machine and recorded beside the archive of its classes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import orjson

from derive.spark.java import archive_folder

UNPREPARED, PREPARED = 10.5, 6.0
"""Default start times on two cores without and with an archive, seconds."""

_MOST = 1.5
"""Upper bound of the expected start time, as a multiple of the default: a busy machine may have delayed one start."""


def start_seconds(master: str | None, folder: Path | None = None) -> float:
    """Return the expected start time of Spark, seconds.

    Args:
        master: Spark master URL; None for this machine's cores.
        folder: folder of the record; None for beside the archive.
    """
    folder = folder or archive_folder()
    usual = PREPARED if any(folder.glob("*.jsa")) else UNPREPARED
    with suppress(OSError, ValueError, KeyError, TypeError):
        return min(float(orjson.loads(_file(folder).read_bytes())[master or ""]), _MOST * usual)
    return usual


def remember_start(master: str | None, seconds: float, folder: Path | None = None) -> None:
    """Record the duration of a start if the folder is writable; a slower start counts for half."""
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
    """Delete the record, because the start time is about to change."""
    _file(folder or archive_folder()).unlink(missing_ok=True)


def _file(folder: Path) -> Path:
    return folder / "spark-start.json"
