"""The table of capabilities: durable rights to read a collection, to write a collection, or to run a task.

A read capability keeps the collection's `since` from passing its frontier, and keeps replaced files. A write capability
keeps the collection's `upper` from passing its frontier, so the collection is not sealed while a writer works.

A capability belongs to a process or to a task.

- The capabilities of a process expire: such a capability ends when it is not renewed in time, or when its process has
  ended (if the process is visible). Several processes can ingest into one collection at the same time.
- A task holds a read capability on each of its sources as long as the task exists. Materialized views and indexes also
  hold read capabilities, under names of their own.
- The write capabilities of a task are exclusive. One transaction acquires them together with the run capability, and
  they end together. A new run capability fences the previous run (law L5). If the process of a task is visible and
  alive, the run capability does not expire, and can only be fenced.
- The right to compact and the right to serve SQL are run capabilities of tasks of their own, `compaction:` and `sql:`.
  One process at a time has each. Others do not fence it, but wait for its end, so it expires in any case.

All functions take a transaction of the metadata database. The table names collections by name, and a rename changes
these names; values of `Capability` name collections by identifier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import starmap
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from derive.errors import FencedError, FrontierError
from derive.storage.metadata.process import is_dead, is_local, show_process, this_process
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.table_types import GlobalId
from derive.time import END_OF_TIME

COMPACTION = "compaction:"
"""Name of the task whose run capability is the right to compact; no task of a catalog has a colon in its name."""

SERVING = "sql:"
"""Name of the task whose run capability is the right to serve SQL."""

_EXPIRING = (COMPACTION, SERVING)
"""Tasks whose run capabilities expire even if their process is visible and alive, because it may be stopped."""

LIFETIME = 60_000_000
"""Time after which a capability of a process expires unless it is renewed, microseconds."""

RENEW_SECONDS = 15.0
"""Interval of the renewals of capabilities, in seconds."""

Kind: TypeAlias = Literal["read", "write", "run"]
"""Kind of a capability: `read` bounds `since`, `write` bounds `upper`, and `run` is the right to run a task."""


@dataclass(frozen=True, slots=True)
class Capability:
    """A capability in the state of its last read from the table.

    Attributes:
        id: identifier, a UUID; any process that knows the identifier can use the capability.
        kind: see `Kind`.
        collection: identifier of the collection; 0 for a run capability.
        frontier: timestamp that `since` or `upper` does not pass. `END_OF_TIME` is the empty frontier, at which nothing
            can be read or written.
        expires: wall-clock time of the expiry, microseconds; None if the capability does not expire.
        task: name of the task, materialized view or index that has the capability; None if a process has it.
        process: name of the process that acquired the capability, in the format of derive/storage/metadata/process.py.
        purpose: description of the use, for people; None if unknown.
    """

    id: str
    kind: Kind
    collection: GlobalId
    frontier: int
    expires: int | None
    task: str | None
    process: str
    purpose: str | None

    @property
    def holder(self) -> str:
        """Return the holder as a text for people: the task, or the process and its purpose."""
        process = show_process(self.process)
        return self.task or (f"{self.purpose} ({process})" if self.purpose else process)


@dataclass(frozen=True, slots=True)
class TaskCapability:
    """The run capability of a task, with the write capabilities that were acquired with it.

    Attributes:
        id: identifier, a UUID.
        task: name of the task.
        epoch: number of the run capability among all run capabilities of the task.
        frontiers: for each collection, a lower bound of the written timestamps, which its `upper` does not pass.
        progress: the stored positions and places of the task, as JSON, after the last commit with the capability; None
            if unknown.
    """

    id: str
    task: str
    epoch: int
    frontiers: Mapping[str, int]
    progress: tuple[str, str] | None = field(default=None, compare=False)


_QUERY = (
    "SELECT capability.id, kind, coalesce(collection.id, 0), coalesce(frontier, 0), expires, task, holder, purpose"
    " FROM capability LEFT JOIN collection ON collection.name = capability.collection"
)


_ORDER = "coalesce(task, ''), holder"
"""Order of capabilities at one frontier: first those of processes."""

_seen: set[str] = set()
"""Processes with capabilities that expire, at the last look of this process at them."""


def _insert(
    db: Transaction,
    kind: Kind,
    *,
    collection: str | None = None,
    frontier: int | None = None,
    expires: int | None = None,
    task: str | None = None,
    transform: str | None = None,
    purpose: str | None = None,
) -> str:
    """Add a capability that this process acquires, and return its identifier."""
    identifier = str(uuid4())
    at = db.now() if kind == "read" else None
    db.execute(
        "INSERT INTO capability (id, kind, collection, task, transform, frontier, expires, at, holder, purpose)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (identifier, kind, collection, task, transform, frontier, expires, at, this_process(), purpose),
    )
    return identifier


# Capabilities by identifier


def acquire(
    db: Transaction,
    kind: Literal["read", "write"],
    name: str,
    frontier: int,
    *,
    purpose: str | None = None,
    lasts: bool = False,
) -> Capability:
    """Acquire a capability for this process.

    Args:
        db: a write transaction.
        kind: `read` or `write`.
        name: name of the collection.
        frontier: timestamp.
        purpose: description of the use, for people.
        lasts: whether the capability never expires.
    """
    expires = None if lasts else db.now() + LIFETIME
    identifier = _insert(db, kind, collection=name, frontier=frontier, expires=expires, purpose=purpose)
    number: int = db.recall(_NUMBER, (name,)).get
    return Capability(identifier, kind, number, frontier, expires, None, this_process(), purpose)


class Bound(Enum):
    """The frontier at which a capability is acquired, as a query."""

    SINCE = "SELECT since FROM collection WHERE name = ?"
    UPPER = "SELECT upper FROM collection WHERE name = ?"
    PRESENT = "SELECT clock + 1 FROM timeline"
    """The time that the timeline has just passed."""


def acquire_at(
    db: Transaction,
    kind: Literal["read", "write"],
    name: str,
    bound: Bound,
    *,
    purpose: str | None = None,
    lasts: bool = False,
    identifier: str | None = None,
) -> Callable[[], Capability]:
    """Acquire a capability like `acquire`, at a frontier that the database knows; return a function that returns it.

    With an identifier, a repetition after a commit whose answer was lost finds the acquired capability.
    """
    identifier, now = identifier or str(uuid4()), db.now()
    expires = None if lasts else now + LIFETIME
    values = (name,) * bound.value.count("?")
    at = now if kind == "read" else None
    db.execute(
        "INSERT INTO capability (id, kind, collection, frontier, expires, at, holder, purpose)"
        f" VALUES (?, ?, ?, ({bound.value}), ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (identifier, kind, name, *values, expires, at, this_process(), purpose),
    )
    frontier = db.execute(_FRONTIER, (identifier,))
    number: int = db.recall(_NUMBER, (name,)).get
    return lambda: Capability(identifier, kind, number, frontier.get, expires, None, this_process(), purpose)


_NUMBER = "SELECT id FROM collection WHERE name = ?"
_FRONTIER = "SELECT frontier FROM capability WHERE id = ?"


def find(db: Transaction, identifier: str) -> Capability:
    """Return the present state of a capability.

    Raises:
        FencedError: the capability was dropped, or has expired.
    """
    row: Any = db.execute(f"{_QUERY} WHERE capability.id = ?", (identifier,)).fetchone()
    if row is None:
        raise _dropped(identifier)
    return Capability(*row)


def _dropped(identifier: str) -> FencedError:
    return FencedError(
        f"the capability {identifier} no longer exists: it was dropped or has expired",
        hint="acquire another capability",
    )


def is_live(db: Transaction, identifier: str) -> bool:
    """Return true if a capability has not ended and was not fenced."""
    return db.expect("SELECT 1 FROM capability WHERE id = ?", (identifier,))


def require_live(db: Transaction, capability: Capability) -> str:
    """Return the present name of a capability's collection.

    Raises:
        FencedError: the capability has ended.
    """
    name: str | None = db.recall("SELECT name FROM collection WHERE id = ?", (capability.collection,)).get
    if name is not None and db.expect(
        "SELECT 1 FROM capability WHERE id = ? AND collection = ?", (capability.id, name)
    ):
        return name
    present: str | None = db.execute("SELECT collection FROM capability WHERE id = ?", (capability.id,)).get
    if present is None:
        raise _expired(capability.kind, name or str(capability.collection))
    return present


def renew(db: Transaction, identifier: str) -> None:
    """Restart the lifetime of a capability, unless it has ended or does not expire; replaced files stay protected."""
    db.execute(
        "UPDATE capability SET expires = ? WHERE id = ? AND expires IS NOT NULL", (db.now() + LIFETIME, identifier)
    )


def downgrade(db: Transaction, capability: Capability, frontier: int) -> Capability:
    """Move a capability up to a frontier, and renew it; files that were replaced before lose their protection.

    Raises:
        FencedError: the capability was dropped, or has expired.
        FrontierError: the capability is already at a later frontier.
    """
    capability = _present(db, capability, frontier)
    if frontier < capability.frontier:
        where = f"capability {capability.id} is at {capability.frontier}"
        raise FrontierError(f"{where}, and cannot go back to {frontier}")
    now = db.now()
    values = (frontier, now, now + LIFETIME, capability.id)
    db.execute(f"UPDATE capability SET frontier = ?, {_RENEWED} WHERE id = ?", values)
    return replace(capability, frontier=frontier, expires=None if capability.expires is None else now + LIFETIME)


def keep(db: Transaction, capability: Capability) -> Callable[[], Capability]:
    """Renew a capability like `downgrade`, at its present frontier; return a function that returns it.

    Raises:
        FencedError: the capability was dropped, or has expired.
    """
    capability, now = _present(db, capability, END_OF_TIME), db.now()
    expires = None if capability.expires is None else now + LIFETIME
    db.execute(f"UPDATE capability SET {_RENEWED} WHERE id = ?", (now, now + LIFETIME, capability.id))
    frontier = db.execute(_FRONTIER, (capability.id,))
    return lambda: replace(capability, frontier=frontier.get, expires=expires)


_RENEWED = "at = CASE kind WHEN 'read' THEN ? END, expires = CASE WHEN expires IS NOT NULL THEN ? END"


def _present(db: Transaction, capability: Capability, frontier: int) -> Capability:
    """Return the present state of a capability; if its frontier is at most `frontier`, perhaps with an earlier one.

    Raises:
        FencedError: the capability was dropped, or has expired.
    """
    is_as_known = db.expect(
        "SELECT 1 FROM capability JOIN collection ON collection.name = capability.collection"
        " WHERE capability.id = ? AND frontier BETWEEN ? AND ? AND collection.id = ? AND holder = ?",
        (capability.id, capability.frontier, frontier, capability.collection, capability.process),
    )
    return capability if is_as_known else find(db, capability.id)


def clone(db: Transaction, identifier: str) -> Capability:
    """Return a copy of a capability; this process holds the copy, and the original stays.

    Raises:
        FencedError: the capability was dropped, or has expired.
    """
    find(db, identifier)
    copy = str(uuid4())
    db.execute(
        "INSERT INTO capability (id, kind, collection, frontier, expires, at, purpose, holder)"
        " SELECT ?, kind, collection, frontier, CASE WHEN expires IS NOT NULL THEN ? END, at, purpose, ?"
        " FROM capability"
        " WHERE id = ?",
        (copy, db.now() + LIFETIME, this_process(), identifier),
    )
    return find(db, copy)


def take(db: Transaction, identifier: str) -> Capability:
    """Make this process the holder of a capability of another process.

    Raises:
        FencedError: the capability was dropped, or has expired.
    """
    db.execute("UPDATE capability SET holder = ? WHERE id = ?", (this_process(), identifier))
    taken = find(db, identifier)
    return downgrade(db, taken, taken.frontier)


def release(db: Transaction, identifier: str) -> None:
    """Drop a capability, unless it has ended."""
    db.execute("DELETE FROM capability WHERE id = ?", (identifier,))


def release_all(identifiers: Sequence[str], db: Transaction) -> Callable[[], None]:
    """Drop capabilities, as the body of a commit."""
    for identifier in identifiers:
        release(db, identifier)
    return nothing


def renew_all(identifiers: Sequence[str], db: Transaction) -> Callable[[], None]:
    """Renew capabilities like `renew`, as the body of a commit."""
    for identifier in identifiers:
        renew(db, identifier)
    return nothing


def release_expired(db: Transaction) -> None:
    """Drop expired capabilities, and capabilities of ended processes.

    Uncommitted files of these writers become garbage.

    Args:
        db: a write transaction.
    """
    if _none_has_expired(db):
        return
    rows = _expiring(db)
    _seen.clear()
    _seen.update(row[4] for row in rows)
    for identifier, kind, collection, task, *_ in _ended(db, rows):
        if kind == "run":
            release_run(db, task)  # the next run of the task collects its files
            continue
        release(db, identifier)
        if kind == "write":
            db.execute("INSERT INTO abandoned VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (identifier, collection))


def find_ended(db: Transaction) -> frozenset[str]:
    """Return the identifiers of the capabilities that `release_expired` drops."""
    ended = _ended(db, _expiring(db))
    tasks = [task for _, kind, _, task, *_ in ended if kind == "run"]
    query = f"SELECT id FROM capability WHERE kind = 'write' AND task IN ({', '.join('?' * len(tasks))})"
    writes: list[Any] = db.execute(query, tasks).fetchall() if tasks else []
    return frozenset(row[0] for row in (*ended, *writes))


def _expiring(db: Transaction) -> list[Any]:
    """Return the identifier, kind, collection, task, process and expiry of each capability that expires."""
    return db.execute(
        "SELECT id, kind, collection, task, holder, expires FROM capability WHERE expires IS NOT NULL"
    ).fetchall()


def _ended(db: Transaction, rows: Sequence[Any]) -> list[Any]:
    """Return those of the rows of `_expiring` whose capability has expired, or whose process has ended."""
    now = db.now()
    dead = {process: is_dead(process) for process in {row[4] for row in rows}}  # each check reads a file
    return [row for row in rows if dead[row[4]] or _is_late(row[1], row[5], row[3], row[4], now)]


def _none_has_expired(db: Transaction) -> bool:
    """Return true if all capabilities that expire are of known processes, which are alive, and none is late."""
    known = [process for process in list(_seen) if not is_dead(process)]  # each check reads a file
    visible = [process for process in known if is_local(process)]
    unknown = f"holder NOT IN ({', '.join('?' * len(known))})" if known else "1 = 1"
    runs = (
        f"AND NOT (kind = 'run' AND task NOT IN {_EXPIRING} AND holder IN ({', '.join('?' * len(visible))}))"
        if visible
        else ""
    )
    return db.expect(
        "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM capability WHERE expires IS NOT NULL"
        f" AND ({unknown} OR (expires < ? {runs})))",
        (*known, db.now(), *visible),
    )


# Capabilities by collection


def release_writers(db: Transaction, name: str) -> None:
    """Drop all write capabilities of a collection; uncommitted files of their holders become garbage."""
    db.execute(
        "INSERT INTO abandoned SELECT id, collection FROM capability"
        " WHERE collection = ? AND kind = 'write' AND task IS NULL ON CONFLICT (id) DO NOTHING",
        (name,),
    )
    db.execute("DELETE FROM capability WHERE collection = ? AND kind = 'write'", (name,))


def least_write_frontier(db: Transaction, name: str) -> int | None:
    """Return the least frontier of a collection's writers, which `upper` cannot pass; None without writers."""
    frontier: int | None = db.recall(
        "SELECT min(frontier) FROM capability WHERE collection = ? AND kind = 'write'", (name,)
    ).get
    return frontier


def read_capabilities(db: Transaction, name: str) -> tuple[Capability, ...]:
    """Return the read capabilities on a collection, by frontier: for each task the lowest, and all of processes."""
    rows: list[Any] = db.execute(
        f"{_QUERY} WHERE capability.collection = ? AND kind = 'read' ORDER BY frontier, {_ORDER}", (name,)
    ).fetchall()
    least: dict[str, Capability] = {}
    for capability in starmap(Capability, rows):
        least.setdefault(capability.task or capability.id, capability)
    return tuple(least.values())


def write_capabilities(db: Transaction, name: str) -> tuple[Capability, ...]:
    """Return the write capabilities that bound the `upper` of a collection, by frontier."""
    rows: list[Any] = db.execute(
        f"{_QUERY} WHERE capability.collection = ? AND kind = 'write' AND frontier < ? ORDER BY frontier, {_ORDER}",
        (name, END_OF_TIME),
    ).fetchall()
    return tuple(starmap(Capability, rows))


def last_read(db: Transaction, name: str) -> int:
    """Return the latest time at which a present read capability on a collection was acquired or moved; 0 for none."""
    at: int = db.execute(
        "SELECT coalesce(max(at), 0) FROM capability WHERE collection = ? AND kind = 'read'", (name,)
    ).get
    return at


def reading_since(db: Transaction) -> dict[str, int]:
    """Return the earliest time of the running reads of each collection; files replaced after it may be in use."""
    rows: list[Any] = db.execute(
        "SELECT collection, at, holder FROM capability WHERE kind = 'read' AND at IS NOT NULL ORDER BY at DESC"
    ).fetchall()
    dead = {process: is_dead(process) for process in {row[2] for row in rows}}
    reading = {collection: at for collection, at, process in rows if not dead[process]}
    former: list[Any] = db.execute("SELECT collection, collection || '@' || number FROM version").fetchall()
    for name, stored in former:  # a reader that began before a swap reads the former version under the present name
        if name in reading:
            reading[stored] = min(reading[name], reading.get(stored, reading[name]))
    return reading


# Run capabilities of tasks


def run_capability(db: Transaction, task: str) -> Capability | None:
    """Return the capability of any process to run a task; None for none."""
    row: Any = db.execute(f"{_QUERY} WHERE task = ? AND kind = 'run'", (task,)).fetchone()
    return row and Capability(*row)


def run_capabilities(db: Transaction) -> list[Capability]:
    """Return the capabilities of all processes to run tasks."""
    rows: list[Any] = db.execute(f"{_QUERY} WHERE kind = 'run'").fetchall()
    return [Capability(*row) for row in rows]


def is_late(run: Capability, now: int) -> bool:
    """Return whether a run capability was not renewed in time.

    Args:
        run: the capability.
        now: wall-clock time, microseconds.
    """
    return _is_late("run", run.expires or now, run.task, run.process, now)


def _is_late(kind: str, expires: int, task: str | None, process: str, now: int) -> bool:
    """Return whether a capability has expired; that of a run on this machine ends with its process instead."""
    return expires < now and not (kind == "run" and task not in _EXPIRING and is_local(process))


def other_run(db: Transaction, task: str) -> Capability | None:
    """Return the capability of another process to run a task; None for none."""
    run = run_capability(db, task)
    return None if run is None or run.process == this_process() else run


def require_free(db: Transaction, task: str) -> None:
    """Raise an error if another process has the capability to run a task.

    Args:
        db: a write transaction.
        task: name of the task.

    Raises:
        FencedError: another process has the capability.
    """
    release_expired(db)
    if other_run(db, task) is not None:
        raise _superseded(task)


def acquire_run(
    db: Transaction, task: str, epoch: int, frontiers: Mapping[str, int], purpose: str | None = None
) -> TaskCapability:
    """Acquire the capabilities to run a task and to write its collections, and fence earlier holders.

    Args:
        db: a write transaction.
        task: name of the task.
        epoch: new epoch of the task.
        frontiers: lower bound of the written timestamps, by collection.
        purpose: description of the use, for people; None for a run.
    """
    _release_run(db, task)
    identifier = _insert(db, "run", task=task, expires=db.now() + LIFETIME, purpose=purpose)
    for name, frontier in frontiers.items():
        release_writers(db, name)
        _insert(db, "write", collection=name, task=task, frontier=frontier)
    return TaskCapability(identifier, task, epoch, dict(frontiers))


def acquire_compaction(db: Transaction) -> TaskCapability | None:
    """Acquire the right to compact; return None if another process or thread has it."""
    release_expired(db)
    if run_capability(db, COMPACTION) is not None:
        return None
    return acquire_run(db, COMPACTION, 0, {})


def require_compaction(db: Transaction, capability: TaskCapability) -> None:
    """Renew the right to compact.

    Raises:
        FencedError: the right has expired.
    """
    if not is_live(db, capability.id):
        raise FencedError(
            f"this process was silent for {LIFETIME // 1_000_000} s while it compacted, so another process may compact",
            hint="nothing is lost; run the command again",
        )
    renew(db, capability.id)


def require_run(db: Transaction, capability: TaskCapability, names: Sequence[str] = ()) -> None:
    """Renew a run capability; raise an error if it has ended or was fenced.

    Args:
        db: a write transaction.
        capability: the run capability.
        names: collections that the holder must still be able to write.

    Raises:
        FencedError: the capability has ended or was fenced, or another task writes one of the collections.
    """
    task = capability.task
    require_held(db, capability)
    rows: list[Any] = db.recall(
        "SELECT collection FROM capability WHERE task = ? AND kind = 'write' ORDER BY collection", (task,)
    ).fetchall()
    lost = sorted(set(names) - {row[0] for row in rows})
    if lost:
        raise _superseded(lost[0])
    renew(db, capability.id)


def require_held(db: Transaction, capability: TaskCapability) -> None:
    """Raise an error if a run capability has ended or was fenced.

    Raises:
        FencedError: the capability has ended or was fenced.
    """
    task = capability.task
    if not is_live(db, capability.id):
        epoch: int | None = db.execute("SELECT epoch FROM task WHERE name = ?", (task,)).get
        raise _fenced(db, task) if epoch is None or epoch > capability.epoch else _expired("write", task)


def epochs_of(db: Transaction, tasks: Iterable[str]) -> dict[str, int]:
    """Return the epochs of the tasks that have ever run, also after a reset."""
    epochs = {task: db.execute("SELECT epoch FROM task WHERE name = ?", (task,)).get for task in tasks}
    return {task: epoch for task, epoch in epochs.items() if epoch is not None}


def every_epoch(db: Transaction) -> dict[str, int]:
    """Return the epochs of all tasks that have ever run."""
    rows: list[Any] = db.execute("SELECT name, epoch FROM task").fetchall()
    return dict(rows)


def require_epochs(db: Transaction, epochs: Mapping[str, int]) -> None:
    """Raise an error if a run of another epoch has begun, or if a task was reset.

    Args:
        db: a transaction.
        epochs: the epoch of each task, by name; 0 for a task that has never run.

    Raises:
        FencedError: the epoch of a task is another.
    """
    present = epochs_of(db, epochs)
    for task, epoch in epochs.items():
        if present.get(task, 0) != epoch:
            raise _fenced(db, task)


def renew_runs(db: Transaction) -> None:
    """Renew the run capabilities of all tasks of this process.

    Args:
        db: a write transaction, without extra cost if it writes anyway.
    """
    db.execute(
        "UPDATE capability SET expires = ? WHERE kind = 'run' AND holder = ?", (db.now() + LIFETIME, this_process())
    )


def downgrade_run(db: Transaction, capability: TaskCapability, name: str, frontier: int) -> None:
    """Move a task's write capability on a collection up to a frontier."""
    db.execute(
        "UPDATE capability SET frontier = ? WHERE collection = ? AND task = ? AND kind = 'write'",
        (frontier, name, capability.task),
    )


def release_run(db: Transaction, task: str) -> None:
    """Drop the capabilities to run a task and to write its output; its read capabilities protect no replaced files."""
    _release_run(db, task)
    db.execute("UPDATE capability SET at = NULL WHERE task = ?", (task,))


def _release_run(db: Transaction, task: str) -> None:
    db.execute("DELETE FROM capability WHERE task = ? AND kind IN ('run', 'write')", (task,))


def _fenced(db: Transaction, task: str) -> FencedError:
    """Return the error of a run of a task that another run or a reset has fenced: a reset leaves no run and no shards.

    The reset of some inputs leaves the shards, and is not distinguished from a run that has ended.
    """
    if run_capability(db, task) is not None:
        return _superseded(task)
    shards: int | None = db.execute("SELECT shards FROM task WHERE name = ?", (task,)).get
    if shards == 0:
        return FencedError(
            f"'{task}' was reset, so this process commits nothing more",
            hint="'flowctl run' starts the task over; 'flowctl run --watch' continues by itself after a reset",
        )
    return FencedError(
        f"another flowctl runs '{task}' now, or has reset it, so this process commits nothing more",
        hint="nothing is lost: start 'flowctl run' again, unless 'flowctl status' shows a run; 'flowctl run --watch'"
        " continues by itself after a reset",
    )


def _superseded(name: str) -> FencedError:
    return FencedError(
        f"another flowctl runs '{name}' now, so this process commits nothing more",
        hint="nothing is lost: the newer process continues. One running 'flowctl run' derives new documents, too;"
        " see what runs with 'flowctl status'",
    )


def _expired(kind: Kind, name: str) -> FencedError:
    return FencedError(f"the capability to {kind} '{name}' has expired", hint="run the command again")


# Read capabilities of tasks, materialized views and indexes

_VIEW = "view:"
"""Prefix of the holder name of a materialized view; no task of a catalog has a colon in its name."""


_INDEX = "index:"
"""Prefix of the holder name of an index."""


def view_holder(identifier: GlobalId) -> str:
    """Return the holder name of a materialized view."""
    return f"{_VIEW}{identifier}"


def index_holder(identifier: GlobalId) -> str:
    """Return the holder name of an index."""
    return f"{_INDEX}{identifier}"


def acquire_input(db: Transaction, task: str, transform: str, name: str, frontier: int) -> None:
    """Acquire the capability of a task's transform to read a collection; it never expires."""
    _insert(db, "read", collection=name, task=task, transform=transform, frontier=frontier)


def replace_inputs(db: Transaction, holder: str, names: Collection[str], frontier: int) -> None:
    """Replace the read capabilities of a view or an index by capabilities on these collections, at a frontier."""
    release_inputs(db, holder)
    for name in names:
        if db.execute("SELECT 1 FROM collection WHERE name = ?", (name,)).get:
            acquire_input(db, holder, name, name, frontier)


def release_inputs(db: Transaction, task: str) -> dict[tuple[str, str], int]:
    """Drop a task's read capabilities; return their frontiers by transform and collection."""
    rows: list[Any] = db.execute(
        "DELETE FROM capability WHERE task = ? AND kind = 'read' RETURNING transform, collection, frontier", (task,)
    ).fetchall()
    return {(transform, name): frontier for transform, name, frontier in rows}


def downgrade_inputs(db: Transaction, task: str, needs: Mapping[str, int], *, may_step_back: bool = False) -> None:
    """Move a task's read capabilities to the needed frontiers, by transform; move them back only if `may_step_back`."""
    now = db.now()
    moved = "?" if may_step_back else "CASE WHEN frontier < ? THEN ? ELSE frontier END"
    db.executemany(
        f"UPDATE capability SET frontier = {moved}, at = ? WHERE task = ? AND transform = ? AND kind = 'read'",
        [
            (*([frontier] if may_step_back else [frontier, frontier]), now, task, transform)
            for transform, frontier in needs.items()
        ],
    )


def rewind_inputs(db: Transaction, task: str, transforms: Collection[str] | None = None) -> None:
    """Move the read capabilities of a task that does not run back to the `since` of their sources.

    Args:
        db: a write transaction.
        task: name of the task.
        transforms: state keys of the inputs that begin again; None for all.
    """
    rows: list[Any] = db.execute(
        "SELECT id, transform FROM capability WHERE task = ? AND kind = 'read'", (task,)
    ).fetchall()
    db.executemany(
        "UPDATE capability SET at = NULL, frontier = (SELECT since FROM collection WHERE name = capability.collection)"
        " WHERE id = ?",
        [(identifier,) for identifier, transform in rows if transforms is None or transform in transforms],
    )


def rename_inputs(db: Transaction, task: str, keys: Mapping[str, str]) -> None:
    """Give the read capabilities of a task new state keys, by old state key.

    A run that waited for the acceptance of the edit may have acquired capabilities for the new keys, too.
    """
    db.executemany(
        "DELETE FROM capability WHERE task = ? AND transform = ? AND kind = 'read'",
        [(task, new) for new in keys.values()],
    )
    db.executemany(
        "UPDATE capability SET transform = ? WHERE task = ? AND transform = ? AND kind = 'read'",
        [(new, task, old) for old, new in keys.items()],
    )


def readers(db: Transaction) -> dict[str, set[str]]:
    """Return the collections on which each task of a catalog has read capabilities; shadows are left out."""
    rows: list[Any] = db.execute(
        "SELECT task, collection FROM capability WHERE kind = 'read' AND task NOT LIKE '%:%' AND task NOT LIKE '%@%'"
    ).fetchall()
    collections: dict[str, set[str]] = {}
    for task, collection in rows:
        collections.setdefault(task, set()).add(collection)
    return collections


def dataflow_frontiers(db: Transaction, kind: Literal["view", "index"]) -> dict[GlobalId, int]:
    """Return the views or indexes with read capabilities, each with the timestamp from which it may read all inputs."""
    rows: list[Any] = db.execute(
        "SELECT task, max(frontier) FROM capability WHERE kind = 'read' AND task LIKE ? || ':%' GROUP BY task", (kind,)
    ).fetchall()
    return {int(holder.partition(":")[2]): frontier for holder, frontier in rows}
