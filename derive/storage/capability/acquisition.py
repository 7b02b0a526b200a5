"""The acquisition of a task: the check of its right to run, a new epoch, and its capabilities, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from derive.errors import UsageError
from derive.protocol.collection import owner_of_version
from derive.storage.capability.table import TaskCapability, acquire_run, release_expired, require_free
from derive.storage.metadata.collection import upper_of
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.owner import Door, require_open
from derive.storage.metadata.segment import begin_writer
from derive.storage.metadata.tasks import begin_epoch, read_task
from derive.storage.metadata.transaction import Transaction


def acquire(
    db: Transaction,
    name: str,
    shards: int,
    outputs: Sequence[str],
    *,
    purpose: str | None,
    if_free: bool,
    shadow: str | None,
) -> tuple[TaskCapability, TaskState]:
    """Acquire a task; see `Store.acquire_task`.

    Args:
        db: a write transaction.
        name: the task.
        shards: number of shards for a task that has never run.
        outputs: names of the collections that the task writes.
        purpose: description of the use, for people; None for a run.
        if_free: whether to fail if another process holds the capability.
        shadow: as for `require_shadow`; None to acquire the task with any shadow.
    """
    release_expired(db)
    if shadow is not None:
        require_shadow(db, name, shadow)
    for output in outputs:
        require_open(db, output, Door.TASK)
    if if_free:
        require_free(db, name)
    epoch = begin_epoch(db, name, shards)
    capability = acquire_run(db, name, epoch, {output: upper_of(db, output) for output in outputs}, purpose)
    for output in outputs[:1]:  # the names of all files begin with this identifier
        begin_writer(db, capability.id, output)
    state = read_task(db, name)
    assert state is not None
    return capability, state


def require_shadow(db: Transaction, task: str, definition: str) -> None:
    """Raise an error if the shadow of a task is another one than its run knows.

    Args:
        db: the write transaction that acquires the capability to run the task.
        task: name of the task, or of the shadow itself.
        definition: digest of the shadow's definition; empty if the run knows of no shadow.

    Raises:
        UsageError: another process has begun or ended the shadow.
    """
    query = (
        "SELECT definition, 'derived' FROM shadow WHERE task = ? AND ? IN (task, task || '@' || number) UNION ALL"
        " SELECT definition, 'filled' FROM shadow_binding WHERE task = ?"
    )
    owner = owner_of_version(task) or task
    digest, verb = db.execute(query, (owner, task, task)).fetchone() or ("", "")
    if digest == definition:
        return
    if not definition:
        raise shadowed([owner], verb)
    raise UsageError(
        f"another process has ended the shadow of '{owner}', or has begun another one",
        hint="begin a shadow again: flowctl run --shadow",
    )


def shadowed(tasks: Sequence[str], verb: str) -> UsageError:
    """Return the error of a run without the shadows of its tasks.

    Args:
        tasks: names of the tasks.
        verb: `derived` for shadows of derivations, and `filled` for shadows of bindings.
    """
    return UsageError(
        f"a shadow of {', '.join(tasks)} is being {verb}, and a run without it would apply the edit at once",
        hint="continue it: flowctl run --shadow; or drop it: flowctl shadow drop",
    )
