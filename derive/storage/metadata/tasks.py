"""Tasks in the metadata database: their state, their past, and their commits with the updates of collections.

A task has an epoch: the number of its run capabilities so far. The epoch never decreases: a task that was reset keeps
its name and its epoch, and has no shards.

The past has the definitions and transactions by which derivations derived. The documents of a derivation depend on its
sources and on its definition. If a timestamp was raised to the `upper` of the output, they also depend on the extents
of transactions, and of the steps of a transaction on a cycle. A replay needs all of these. Consecutive regular
transactions of one definition are one part, whose end is the present position of the task. So a commit usually reads
one row about the past, and writes no row. Of a materialization, the definition at its last commit is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from derive.errors import FrontierError
from derive.protocol.definition_text import Definition
from derive.storage.capability.table import (
    downgrade_inputs,
    downgrade_run,
    epochs_of,
    readers,
    release_run,
    rename_inputs,
    require_run,
    rewind_inputs,
)
from derive.storage.metadata.chain import move_chains, read_chains, replace_chains
from derive.storage.metadata.collection import advance_upper, empty_collection, upper_of
from derive.storage.metadata.descriptions import (
    CollectionUpdate,
    Derived,
    Divided,
    Edit,
    Edited,
    Kept,
    PastPart,
    Refilling,
    Renamed,
    ResetTask,
    Stopped,
    TaskCommit,
    TaskMove,
    TaskNote,
    TaskState,
    Work,
)
from derive.storage.metadata.materializations import (
    forget_progress,
    replace_kept,
    write_kept,
    write_refills,
    write_restart,
)
from derive.storage.metadata.quarantine import internal_collections
from derive.storage.metadata.segment import insert_segments
from derive.storage.metadata.transaction import Transaction, insert_rows
from derive.time.positions import Place


def record_parts(db: Transaction, task: str, several: Sequence[Derived], documents: int) -> None:
    """Record the parts to which a transaction belongs, before its positions and its output are written.

    Args:
        db: the write transaction of the commit.
        task: name of the derivation.
        several: facts about the transaction, or about its steps in order.
        documents: number of documents that it has processed; of several steps, each has documents.
    """
    for number, derived in enumerate(several):
        _record_part(db, task, derived, documents, derived.begins if number else None)


def _record_part(db: Transaction, task: str, derived: Derived, documents: int, ends: Mapping[str, int] | None) -> None:
    """Record the part to which a step belongs; the part before it ends at the present positions, or at `ends`."""
    last: Any = db.recall(
        "SELECT number, definition, is_regular, ends IS NULL FROM history WHERE task = ? ORDER BY number DESC LIMIT 1",
        (task,),
    ).fetchone()
    number = 0
    if last is not None:
        number, digest, was_regular, is_open = last
        # Without documents, only time has moved, so the transaction fits every part of the same definition.
        is_same = digest == derived.definition.digest and is_open
        if is_same and (not documents or (was_regular and derived.is_regular)):
            return
        end_part(db, task, derived.clamp, ends)
        number += 1
    insert_definition(db, derived.definition)
    db.execute(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, NULL, ?, NULL)",
        (
            task,
            number,
            derived.definition.digest,
            int(derived.is_regular),
            derived.clamp,
            _json_of(derived.begins),
        ),
    )


def _json_of(positions: Mapping[str, int]) -> str:
    return orjson.dumps(dict(positions)).decode()


def insert_definition(db: Transaction, definition: Definition) -> None:
    """Store a definition, unless it is stored already."""
    db.execute(
        "INSERT INTO definition VALUES (?, ?) ON CONFLICT (digest) DO NOTHING", (definition.digest, definition.text)
    )


def end_part(db: Transaction, task: str, upper: int | None = None, ends: Mapping[str, int] | None = None) -> None:
    """End the last part of a derivation's past, unless it has ended.

    Args:
        db: a write transaction.
        task: name of the derivation.
        upper: `upper` of its output; None to look it up.
        ends: positions at the end of the part; None for the task's present positions.
    """
    db.execute(
        "UPDATE history SET upper = ?, ends = coalesce(?, (SELECT positions FROM task WHERE task.name = history.task))"
        " WHERE task = ? AND ends IS NULL",
        (upper_of(db, task) if upper is None else upper, None if ends is None else _json_of(ends), task),
    )


def record_applied(db: Transaction, task: str, definition: Definition) -> None:
    """Record the definition of a materialization, in the write transaction of its commit."""
    if db.recall("SELECT definition FROM applied WHERE task = ?", (task,)).get == definition.digest:
        return
    insert_definition(db, definition)
    db.execute(
        "INSERT INTO applied VALUES (?, ?) ON CONFLICT (task) DO UPDATE SET definition = excluded.definition",
        (task, definition.digest),
    )
    _forget_definitions(db)


def read_applied(db: Transaction, task: str) -> str | None:
    """Return the text of a materialization's definition at its last commit; None if none is recorded."""
    text: str | None = db.execute(
        "SELECT spec FROM applied JOIN definition ON digest = definition WHERE task = ?", (task,)
    ).get
    return text


def _forget_definitions(db: Transaction) -> None:
    """Delete the definitions that no task has."""
    db.execute(
        "DELETE FROM definition WHERE digest NOT IN (SELECT definition FROM history UNION ALL"
        " SELECT definition FROM applied)"
    )


def forget_past(db: Transaction, task: str) -> None:
    """Delete the past of a task, and the definitions that no other task has had."""
    db.execute("DELETE FROM history WHERE task = ?", (task,))
    db.execute("DELETE FROM applied WHERE task = ?", (task,))
    _forget_definitions(db)


def read_past(db: Transaction, task: str) -> list[PastPart]:
    """Return the recorded parts of a derivation's past, in order.

    A folder of an older version has none before a commit.
    """
    positions = db.execute("SELECT positions FROM task WHERE name = ?", (task,)).get
    rows: list[Any] = db.execute(
        "SELECT number, spec, is_regular, clamp, upper, begins, ends FROM history"
        " JOIN definition ON digest = definition WHERE task = ? ORDER BY number",
        (task,),
    ).fetchall()
    return [
        PastPart(
            number,
            definition,
            bool(is_regular),
            clamp,
            upper_of(db, task) if upper is None else upper,
            orjson.loads(begins),
            orjson.loads(positions if ends is None else ends),
        )
        for number, definition, is_regular, clamp, upper, begins, ends in rows
    ]


def last_definition(db: Transaction, task: str) -> str | None:
    """Return the text of the last definition with which a derivation has run; None if none is recorded."""
    text: str | None = db.execute(
        "SELECT spec FROM history JOIN definition ON digest = definition WHERE task = ? ORDER BY number DESC LIMIT 1",
        (task,),
    ).get
    return text


def read_task(db: Transaction, name: str) -> TaskState | None:
    """Return the state of a task; None if it has not run since the last reset."""
    row: Any = db.execute(
        "SELECT shards, positions, error, documents_in, documents_out, transactions, places, fingerprints,"
        " edits, home FROM task WHERE name = ? AND shards > 0",
        (name,),
    ).fetchone()
    numbered: list[Any] = db.execute("SELECT number, token FROM shard WHERE task = ?", (name,)).fetchall()
    if row is None:
        return None
    shards, positions, error, documents_in, documents_out, transactions, places, fingerprints, edits, home = row
    return TaskState(
        name,
        shards,
        orjson.loads(positions),
        dict(numbered),
        error,
        documents_in,
        documents_out,
        transactions,
        places={key: Place.of(place) for key, place in orjson.loads(places).items()},
        fingerprints=orjson.loads(fingerprints),
        edits=tuple(Edit(*edit) for edit in orjson.loads(edits)),
        home=home,
        chains=read_chains(db, name),
    )


def command_of_reset(db: Transaction, name: str) -> str:
    """Return the command that starts a task over, with `--cascade` if another task that has run reads its output."""
    tasks = [task for task, collections in readers(db).items() if name in collections and task != name]
    is_read = any(read_task(db, task) is not None for task in tasks)
    return f"flowctl reset --task {name}{' --cascade' if is_read else ''}"


def folder_of_task(db: Transaction, name: str) -> str | None:
    """Return the task in whose folder a task's state is; None if it has not run since the last reset."""
    home: str | None = db.execute("SELECT home FROM task WHERE name = ? AND shards > 0", (name,)).get
    return None if home is None else home or name


def read_tasks(db: Transaction) -> list[TaskState]:
    """Return the states of all tasks that have run since their last reset, by name."""
    names = [str(name) for (name,) in db.execute("SELECT name FROM task WHERE shards > 0 ORDER BY name").fetchall()]
    return [task for task in (read_task(db, name) for name in names) if task is not None]


def read_work(db: Transaction, name: str) -> dict[str, Work]:
    """Return the work of each lambda of a derivation since its last reset, by state key."""
    query = "SELECT transform, documents, published, micros FROM work WHERE task = ?"
    rows: list[Any] = db.execute(query, (name,)).fetchall()
    return {transform: Work(*counts) for transform, *counts in rows}


def begin_epoch(db: Transaction, name: str, shards: int) -> int:
    """Begin a new epoch of a task, and fix the number of shards at its first run; return the epoch."""
    epoch: int = db.execute(
        "INSERT INTO task (name, shards, positions, epoch) VALUES (?, ?, '{}', 1) ON CONFLICT (name) DO UPDATE SET"
        " epoch = task.epoch + 1, shards = CASE task.shards WHEN 0 THEN excluded.shards ELSE task.shards END"
        " RETURNING epoch",
        (name, shards),
    ).get
    return epoch


def supersede(db: Transaction, name: str) -> int:
    """Begin a new epoch of a server, which has no shards; return the epoch."""
    epoch: int = db.execute(
        "INSERT INTO task (name, shards, positions, epoch) VALUES (?, 0, '{}', 1) ON CONFLICT (name) DO UPDATE SET"
        " epoch = task.epoch + 1 RETURNING epoch",
        (name,),
    ).get
    return epoch


def epoch_of(db: Transaction, name: str) -> int | None:
    """Return the epoch of a task, also after a reset; None if it has never run."""
    epoch: int | None = db.execute("SELECT epoch FROM task WHERE name = ?", (name,)).get
    return epoch


def write_note(db: Transaction, name: str, note: TaskNote) -> None:
    """Record a note about a task, such as an error; the positions of the task do not change."""
    match note:
        case Stopped(error):
            db.execute("UPDATE task SET error = ? WHERE name = ?", (error, name))
        case Edited(fingerprints, edits):
            texts = [[edit.part, edit.message, edit.hint, edit.at] for edit in edits]
            db.execute(
                "UPDATE task SET fingerprints = ?, edits = ? WHERE name = ?",
                (orjson.dumps(dict(fingerprints)).decode(), orjson.dumps(texts).decode(), name),
            )
        case Renamed(keys):
            end_part(db, name)
            _rename(db, name, keys)
        case Divided(shards, tokens, chains, kept):
            db.execute("UPDATE task SET shards = ? WHERE name = ?", (shards, name))
            db.execute("DELETE FROM shard WHERE task = ?", (name,))
            rows = [(name, number, token) for number, token in tokens.items()]
            insert_rows(db, "shard", rows)
            replace_chains(db, name, chains)
            replace_kept(db, name, kept)
        case Refilling(limits):
            write_refills(db, name, limits)
        case Kept(data):
            write_kept(db, name, data)


def _rename(db: Transaction, name: str, keys: Mapping[str, str]) -> None:
    """Rename the state keys of a task's inputs in all its records."""
    row: Any = db.execute("SELECT positions, places, fingerprints, edits FROM task WHERE name = ?", (name,)).fetchone()
    *maps, edits = map(orjson.loads, row)
    moved = [{keys.get(key, key): value for key, value in kept.items()} for kept in maps]
    texts = [[keys.get(part, part), *rest] for part, *rest in edits]
    db.execute(
        "UPDATE task SET positions = ?, places = ?, fingerprints = ?, edits = ? WHERE name = ?",
        (*(orjson.dumps(value).decode() for value in (*moved, texts)), name),
    )
    rename_inputs(db, name, keys)
    work = read_work(db, name)
    db.execute("DELETE FROM work WHERE task = ?", (name,))
    _add_work(db, name, {keys.get(key, key): done for key, done in work.items()})


def _add_work(db: Transaction, name: str, work: Mapping[str, Work]) -> None:
    """Add the work of lambdas, by state key."""
    insert_rows(
        db,
        "work",
        [(name, key, done.documents, done.published, done.micros) for key, done in work.items()],
        "ON CONFLICT (task, transform) DO UPDATE SET documents = work.documents + excluded.documents,"
        " published = work.published + excluded.published, micros = work.micros + excluded.micros",
    )


def forget_task(db: Transaction, name: str) -> None:
    """Delete the state of a task except its epoch, and fence its run."""
    epoch = epoch_of(db, name)
    if epoch is None:
        return
    release_run(db, name)
    db.execute("DELETE FROM shard WHERE task = ?", (name,))
    db.execute("DELETE FROM work WHERE task = ?", (name,))
    replace_chains(db, name, {})
    forget_progress(db, name)
    forget_past(db, name)
    db.execute("DELETE FROM task WHERE name = ?", (name,))
    db.execute("INSERT INTO task (name, shards, positions, epoch) VALUES (?, 0, '{}', ?)", (name, epoch + 1))
    # After a swap, the state was in the folder of a shadow, and a later shadow may use that folder again. "A" is the
    # character after "@".
    db.execute(
        "UPDATE task SET epoch = ? WHERE name > ? AND name < ? AND epoch < ?",
        (epoch + 1, f"{name}@", f"{name}A", epoch + 1),
    )


def reset_tasks(
    db: Transaction, names: Sequence[str], parts: Mapping[str, Collection[str]], restarts: Mapping[str, str]
) -> dict[str, ResetTask]:
    """Delete the derived data and the progress of tasks, and the progress of some inputs of other tasks.

    Args:
        db: a write transaction.
        names: names of the tasks.
        parts: for other tasks (by name), the state keys of the inputs that begin again.
        restarts: JSON of the reset of each materialization among the tasks, by name.

    Returns:
        The tasks of `names` that had ever run, by name.
    """
    folders = {name: folder for name in names if (folder := folder_of_task(db, name)) is not None}
    for name in names:
        for collection in (name, *internal_collections(db, name)):
            empty_collection(db, collection)
        forget_task(db, name)
    for name in names:
        rewind_inputs(db, name)
    for name, keys in parts.items():
        rewind_task(db, name, keys)
        rewind_inputs(db, name, keys)
    for name, restart in restarts.items():
        write_restart(db, name, restart)
    return {name: ResetTask(epoch, folders.get(name, name)) for name, epoch in epochs_of(db, names).items()}


def rewind_task(db: Transaction, name: str, keys: Collection[str]) -> None:
    """Delete the progress of some of a task's inputs (by state key), and fence its run."""
    row: Any = db.execute("SELECT positions, places, fingerprints, edits FROM task WHERE name = ?", (name,)).fetchone()
    if row is None:
        return
    *maps, edits = map(orjson.loads, row)
    left = [{key: value for key, value in kept.items() if key not in keys} for kept in maps]
    texts = [edit for edit in edits if edit[0] not in keys]
    release_run(db, name)
    db.execute(
        "UPDATE task SET epoch = epoch + 1, positions = ?, places = ?, fingerprints = ?, edits = ? WHERE name = ?",
        (*(orjson.dumps(value).decode() for value in (*left, texts)), name),
    )


def advance_task(db: Transaction, name: str, commit: TaskCommit, progress: tuple[str, str] | None = None) -> None:
    """Advance a task, in the write transaction of its documents.

    Args:
        db: the write transaction.
        name: name of the task.
        commit: the progress.
        progress: the expected present progress, as in `TaskCapability`; None to read it.

    Raises:
        FrontierError: a transform would move back.
    """
    if not commit.may_step_back:
        _check_positions(db, name, commit, progress)
    db.execute(
        "UPDATE task SET positions = ?, places = ?, error = NULL, documents_in = documents_in + ?,"
        " documents_out = documents_out + ?, transactions = transactions + ? WHERE name = ?",
        (
            *commit.progress,
            commit.documents_in,
            commit.documents_out,
            int(commit.documents_in > 0),
            name,
        ),
    )
    tokens = [(name, number, token) for number, token in commit.shards.items()]
    insert_rows(db, "shard", tokens, "ON CONFLICT (task, number) DO UPDATE SET token = excluded.token")
    _add_work(db, name, commit.work)
    move_chains(db, name, commit.chains)
    write_kept(db, name, commit.kept)
    downgrade_inputs(db, name, commit.needs, may_step_back=commit.may_step_back)


def _check_positions(db: Transaction, name: str, commit: TaskCommit, progress: tuple[str, str] | None) -> None:
    """Raise an error if a transform would move back in its source, because it would then derive documents twice.

    Positions are adjusted timestamps: source timestamps plus an offset that the catalog may change.
    """
    query = "SELECT 1 FROM task WHERE name = ? AND positions = ? AND places = ?"
    if progress is None or not db.expect(query, (name, *progress)):
        progress = db.execute("SELECT positions, places FROM task WHERE name = ?", (name,)).fetchone()
    assert progress is not None
    before = orjson.loads(progress[0])
    places = {key: Place.of(place) for key, place in orjson.loads(progress[1]).items()}
    for key, position in commit.positions.items():
        old, new = places.get(key), commit.places.get(key)
        if key not in before or old is None or new is None or old.source != new.source:
            continue
        if position - new.offset < before[key] - old.offset:
            raise FrontierError(
                f"the position of '{key}' of '{name}' in '{new.source}' would decrease; nothing was committed"
            )


def move_task(db: Transaction, move: TaskMove) -> None:
    """Advance a task and the collections that it writes.

    Raises:
        FencedError: the capability is no longer valid.
        FrontierError: a timestamp is out of bounds, or a transform would move back.
    """
    capability = move.capability
    require_run(db, capability, [update.collection for update in move.updates])
    if move.commit and move.commit.derived:
        record_parts(db, capability.task, move.commit.derived, move.commit.documents_in)
    for update in move.updates:
        insert_update(db, update, capability.frontiers[update.collection])
        downgrade_run(db, capability, update.collection, update.frontier)
        advance_upper(db, update.collection, update.frontier)
    if move.commit:
        advance_task(db, capability.task, move.commit, capability.progress)
    if move.commit and move.commit.applied:
        record_applied(db, capability.task, move.commit.applied)


def insert_update(db: Transaction, update: CollectionUpdate, frontier: int, *, ascending: bool = False) -> None:
    """Add segments to a collection; the caller has a write capability at `frontier`.

    Raises:
        FrontierError: a timestamp is out of bounds.
    """
    name, segments = update.collection, update.segments
    low = min((segment.clock_min for segment in segments), default=frontier)
    high = max((segment.clock_max for segment in segments), default=frontier - 1)
    reached = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM collection WHERE name = ? AND upper > ?)"
    if low < frontier or high >= max(update.frontier, low) or not db.expect(reached, (name, low)):
        upper = upper_of(db, name)
        raise FrontierError(
            f"documents with clocks {low} to {high} cannot be added to '{name}': a clock must be at least"
            f" {max(upper, frontier)}, and before the frontier {update.frontier} of the commit"
        )
    later = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM segment WHERE collection = ? AND clock_max >= ?)"
    if ascending and segments and not db.expect(later, (name, low)):
        raise FrontierError(f"documents from {low} on are not later than the stored documents of '{name}'")
    insert_segments(db, name, segments)
