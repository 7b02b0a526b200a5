"""The capability to serve SQL over a data folder: one process writes for clients, and maintains views.

It is the run capability of a task of its own, `sql:`. Its process renews it. If the process is stopped, or lost with
its machine, the capability expires, and another process takes over, on any machine. The new process begins a new epoch,
which each commit compares, so the former process commits nothing more when it continues. Reads commit nothing: while
the last renewal is recent, no other process can have begun; later, each read compares the epoch, too.

If the process has ended on this machine, another one begins at once. In another container, `LifeLock` proves the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from derive.errors import FlowError
from derive.storage.capability.life_lock import LifeLock
from derive.storage.capability.renewals import Renewals
from derive.storage.capability.table import (
    LIFETIME,
    SERVING,
    Capability,
    TaskCapability,
    acquire_run,
    is_late,
    release,
    release_expired,
    renew,
    run_capability,
)
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.process import is_dead, this_process
from derive.storage.metadata.tasks import epoch_of, supersede
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.sql_catalog import Fence, superseded
from derive.storage.timeline import uptime

_RECENT = LIFETIME * 3 // 4
"""Age of a renewal up to which no other process can have begun, microseconds; the rest is for differences of clocks."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that serves SQL.

    Attributes:
        process: name of the process, in the format of derive/storage/metadata/process.py.
        address: address of its server; empty if clients cannot connect.
        seconds: time after which another process may take over, unless the capability is renewed.
    """

    process: str
    address: str
    seconds: float


class Serving:
    """The capability of this process to serve SQL over one data folder.

    Args:
        metadata: metadata database of the data folder.
        fence: the fence between servers.
        root: the data folder.
    """

    def __init__(self, metadata: Metadata, fence: Fence, root: Path) -> None:
        self._metadata, self._fence = metadata, fence
        self._life = LifeLock(root)
        self._capability: TaskCapability | None = None
        self._address: str | None = None
        self._renewed_at = 0
        self._renewals = Renewals(metadata, renew=self._renew, after=self._note_renewal)
        self._renewing = ExitStack()

    @property
    def epoch(self) -> int | None:
        """Return the epoch of this process's capability; None without one."""
        return None if self._capability is None else self._capability.epoch

    def was_ever_held(self) -> bool:
        """Return whether the data folder ever had a server."""
        with self._metadata.snapshot() as db:
            return epoch_of(db, SERVING) is not None

    def holder(self) -> Holder | None:
        """Return the process that serves SQL, which may be this one; None for none."""
        with self._metadata.snapshot() as db:
            known, now = run_capability(db, SERVING), db.now()
        if known is None or is_late(known, now) or self._has_ended(known):
            return None
        return _described(known, now)

    def _has_ended(self, known: Capability) -> bool:
        """Return whether the process with the capability has certainly ended."""
        return is_dead(known.process) or self._life.has_ended(known.id, known.process)

    def acquire(self) -> bool:
        """Acquire the capability in a new epoch, durably; return False if another process has it.

        Raises:
            FencedError: this process had the capability, and was fenced.
        """
        if self._capability is None:
            begun = uptime()
            with self._metadata.transaction() as db:
                release_expired(db)
                known = run_capability(db, SERVING)
                if known is not None and not self._has_ended(known):
                    return False
                capability = acquire_run(db, SERVING, supersede(db, SERVING), {})
            self._fence.continue_with(capability.epoch)
            self._capability, self._address = capability, None
            self._life.hold(capability.id)
            self._note_renewal(begun)
            self._renewing.enter_context(self._renewals.renewed(capability.id))
        return True

    @property
    def is_certain(self) -> bool:
        """Return whether no other process can have written for clients, so that `check` asks nothing."""
        return self._capability is None or uptime() - self._renewed_at <= _RECENT

    def check(self) -> None:
        """Raise an error if this process has the capability, and another process may have written for clients since.

        Raises:
            FencedError: another process has begun.
        """
        if not self.is_certain:
            self._fence.check()

    def announce(self, address: str) -> None:
        """Publish the address of this process's server, whose clients wait for commits."""
        self._metadata.is_prompt = False
        if self._capability is not None:
            self._address = address
            with self._metadata.transaction(synced=False) as db:
                db.execute("UPDATE capability SET purpose = ? WHERE id = ?", (address, self._capability.id))

    def release(self) -> None:
        """Drop the capability; a capability that cannot be dropped expires."""
        if self._capability is not None:
            capability, self._capability = self._capability, None
            self._renewing.close()
            with suppress(FlowError), self._metadata.transaction(synced=False) as db:
                release(db, capability.id)
            self._life.release()

    def _renew(self, identifiers: Sequence[str], db: Transaction) -> Callable[[], None]:
        """Renew the capability; acquire it again if it has expired, and no other process has begun.

        So a server on a machine that was suspended for a while continues.

        Raises:
            FencedError: another process has begun.
        """
        capability = self._capability
        if capability is not None and capability.id in identifiers:
            if epoch_of(db, SERVING) != capability.epoch:
                raise superseded()
            renew(db, capability.id)
            values = (capability.id, SERVING, db.now() + LIFETIME, this_process(), self._address)
            db.execute(
                "INSERT INTO capability (id, kind, task, expires, holder, purpose) VALUES (?, 'run', ?, ?, ?, ?)"
                " ON CONFLICT (id) DO NOTHING",
                values,
            )
        return nothing

    def _note_renewal(self, begun: int) -> None:
        """Note when a renewal began, microseconds since the boot."""
        self._renewed_at = begun


def _described(capability: Capability, now: int) -> Holder:
    assert capability.expires is not None
    return Holder(capability.process, capability.purpose or "", (capability.expires - now) / 1e6)
