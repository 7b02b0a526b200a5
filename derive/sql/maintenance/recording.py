"""The record of compute instances, for the process of `flowctl status`.

The record is one small file, which is replaced atomically, at most once a second. The capability of the server, and not
the file, shows whether the server is alive.
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
from derive.storage.metadata.process import this_process
from derive.storage.serving import Serving
from derive.storage.timeline import wall_clock

if TYPE_CHECKING:
    from derive.algebra.relation import GlobalId
    from derive.sql.catalog.items import Item
    from derive.sql.maintenance.controller.replica import ReplicaState

FILE = "instances.json"
"""Name of the file in the data folder."""

LOG = "sql-views"
"""Name of the log of view maintenance."""

SECONDS = 1.0
"""Least interval between two writes, in seconds."""

Described: TypeAlias = Mapping[str, Any]
"""An instance, as JSON."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a server.

    Attributes:
        at: time of the record by the server's wall clock, in microseconds.
        process: process of the server, in the form of derive/storage/metadata/process.py.
        is_live: whether the server is alive.
        instances: instances in the form of `described`.
    """

    at: int
    process: str
    is_live: bool
    instances: Sequence[Described]


def read_record(root: Path, serving: Serving) -> Record | None:
    """Read the last record of a data folder; None after an orderly shutdown, or without a server."""
    written = _read(root / FILE)
    if written is None:
        return None
    return Record(written["at"], written["process"], serving.holder() is not None, written["instances"])


def _read(file: Path) -> Described | None:
    try:
        written: Described = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):  # a power loss may leave an incomplete file
        return None
    return written


def described(
    state: ReplicaState, items: Mapping[GlobalId, Item], unfit: Mapping[GlobalId, FlowError] = MappingProxyType({})
) -> Described:
    """Return an instance as JSON.

    Args:
        state: status of the instance.
        items: items of the catalog, for the names of dataflows.
        unfit: errors of relations that no instance can maintain.
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
    """A thread that records the status of instances after each change.

    Args:
        root: the data folder.
        instances: returns the status of the instances.
        is_superseded: returns whether another process has fenced this process, and writes the record.
    """

    def __init__(
        self, root: Path, instances: Callable[[], Sequence[Described]], is_superseded: Callable[[], bool]
    ) -> None:
        self._file, self._instances, self._is_superseded = root / FILE, instances, is_superseded
        self._written: Sequence[Described] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, and remove the record of another process."""
        for left in (self._file, *self._file.parent.glob(f"{FILE}.*.new")):
            left.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._work, name="flowctl-sql-recording", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and remove the record."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            record = _read(self._file)
            # not the record of a process that has fenced this process
            if record is not None and record["process"] == this_process():
                self._file.unlink(missing_ok=True)

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS):
            with suppress(OSError, FlowError):  # the next interval retries
                self._write()

    def _write(self) -> None:
        instances = self._instances()
        if instances != self._written:
            new = self._file.with_name(f"{FILE}.{os.getpid()}.new")
            record = {"at": wall_clock(), "process": this_process(), "instances": instances}
            new.write_bytes(orjson.dumps(record))
            if self._is_superseded():  # checked last, because this process may have been suspended before
                new.unlink()
                return
            os.replace(new, self._file)
            self._written = instances
