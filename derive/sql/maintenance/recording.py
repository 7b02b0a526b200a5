"""What is written down of compute instances: `flowctl status` is another process, and cannot ask the server.

It is one small file, which is replaced as a whole, at most once a second. Whether the server that wrote it is still at
work is told by its lock, and not by the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from derive.errors import FlowError
from derive.sql.transactions.ownership import Ownership
from derive.storage.metadata.process import this_process
from derive.storage.timeline import wall_clock

if TYPE_CHECKING:
    from derive.algebra.relation import GlobalId
    from derive.sql.catalog.items import Item
    from derive.sql.maintenance.controller.replica_status import ReplicaState

FILE = "instances.json"
"""In the data folder."""

LOG = "sql-views"
"""The name of the log of what keeps views up to date."""

SECONDS = 1.0
"""How long nothing is written after something was."""

Described: TypeAlias = Mapping[str, Any]
"""An instance, as JSON."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a server has written down.

    Attributes:
        at: when, by its wall clock, microseconds.
        process: which it is, as derive/storage/metadata/process.py names it.
        address: where it serves clients; empty if it serves none.
        is_live: whether it is still at work.
        instances: as `described` describes them.
    """

    at: int
    process: str
    address: str
    is_live: bool
    instances: Sequence[Described]


def read_record(root: Path) -> Record | None:
    """What was written down last in a data folder; None if its server has come to an orderly end, or there was none."""
    ownership = Ownership(root)
    written = _read(root / FILE)
    if written is None:
        return None
    address = ownership.address()
    return Record(written["at"], written["process"], address, ownership.is_somebodys(), written["instances"])


def _read(file: Path) -> Described | None:
    try:
        written: Described = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):  # a loss of power may leave half of it
        return None
    return written


def described(
    state: ReplicaState, items: Mapping[GlobalId, Item], unfit: Mapping[GlobalId, FlowError] = MappingProxyType({})
) -> Described:
    """An instance as JSON.

    Args:
        state: of it.
        items: of the catalog, which has the names of its dataflows.
        unfit: what no instance can maintain, and why.
    """
    welcome, report = state.welcome, state.report
    known = sorted(items.keys() & (state.uppers.keys() | state.failures.keys()))
    return {
        "name": state.name,
        "address": state.address,
        "process": welcome and welcome.process,
        "reason": state.trouble or None,
        "kept": welcome and len(welcome.kept),
        "rebuilt": welcome and len(welcome.rebuilt),
        "dropped": welcome and len(welcome.dropped),
        "memory": report and report.memory_bytes,
        "dataflows": [
            {
                "name": items[identifier].name,
                "kind": items[identifier].kind.value,
                "upper": state.uppers[identifier].upper if identifier in state.uppers else None,
                "error": str(state.failures[identifier]) if identifier in state.failures else None,
            }
            for identifier in known
        ]
        + [
            {"name": items[identifier].name, "kind": items[identifier].kind.value, "upper": None, "error": str(error)}
            for identifier, error in sorted(unfit.items())
            if identifier in items
        ],
    }


class Recording:
    """A thread that writes down how instances are, whenever that has changed.

    Args:
        root: the data folder.
        instances: tells how they are.
        is_superseded: tells whether another process has taken over, which writes from then on.
    """

    def __init__(
        self, root: Path, instances: Callable[[], Sequence[Described]], is_superseded: Callable[[], bool]
    ) -> None:
        self._file, self._instances, self._is_superseded = root / FILE, instances, is_superseded
        self._written: Sequence[Described] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin; this process is the one that writes, and what another one has written holds no more."""
        for left in (self._file, *self._file.parent.glob(f"{FILE}.*.new")):
            left.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._work, name="flowctl-sql-recording", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Come to an end, and leave nothing behind."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            record = _read(self._file)
            if record is not None and record["process"] == this_process():  # and not of one that has taken over
                self._file.unlink(missing_ok=True)

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS):
            with suppress(OSError, FlowError):  # it is tried again
                self._write()

    def _write(self) -> None:
        instances = self._instances()
        if instances != self._written:
            new = self._file.with_name(f"{FILE}.{os.getpid()}.new")
            record = {"at": wall_clock(), "process": this_process(), "instances": instances}
            new.write_bytes(orjson.dumps(record))
            if self._is_superseded():  # asked last: this process may have been stopped until now
                new.unlink()
                return
            os.replace(new, self._file)
            self._written = instances
