"""Edits: changes of a derivation after it had published documents, and their acceptance.

Most edits apply to later documents only. Some edits would count published or stored documents a second time, or would
continue stored documents by other rules. The effect raises no error and cannot be undone. So such an edit stops its
task, and no other task; `flowctl run --accept` applies the edit once, and the task records the acceptance.

A run reports a waiting edit by an entry in the task's log. The entry is valid while the run is alive.

An edit of a lambda does not wait: the new lambda derives later documents, and earlier documents stay. The user would
not notice the difference. So a task records a fingerprint of each part at its last run, and every edit since the
output of the task began.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from derive.errors import UnacceptedError
from derive.materialize.restarts import binding_of
from derive.position import Position
from derive.protocol.collection import owner_of_version
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.reduce.reduce_keyword import annotated_locations
from derive.storage.metadata.descriptions import Edit, TaskState
from derive.storage.metadata.process import is_dead, this_process
from derive.storage.roles import View
from derive.storage.task_log import TaskLog, recent_entries


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """An edit that waits to be accepted.

    Attributes:
        part: the edited part: an input, by state key.
        message: the edit, and its consequence.
        hint: ways out other than to accept the edit or to start over.
        position: position of the part in the catalog.
        accepted: the message after the edit is accepted.
        former: name of a removed input that the edit also concerns; None for none.
    """

    part: str
    message: str
    hint: str
    position: Position
    accepted: str
    former: str | None = None

    def remembered(self, upper: int, reset: str) -> Edit:
        """Return the record of the edit after its acceptance.

        Args:
            upper: the task's upper, from which on the edit applies.
            reset: the command that starts the task over.
        """
        return Edit(self.part, self.accepted, f"to remove the results, start over: {reset}", upper)


def reset_command(store: View, name: str) -> str:
    """Return the command that starts a task over, with `--cascade` if tasks that have run read it.

    A shadow starts over only with the whole group.
    """
    if owner_of_version(name) is not None:
        return "flowctl shadow drop"
    readers = store.task_capabilities.readers([name]) - {name}
    is_read = any(store.task(reader) is not None for reader in readers)
    return f"flowctl reset --task {name}{' --cascade' if is_read else ''}"


def refusal_of(task: str, edits: Sequence[Unaccepted], reset: str) -> UnacceptedError | None:
    """Return the error of a task with edits to accept; None without edits.

    Args:
        task: name of the task.
        edits: edits that wait to be accepted.
        reset: the command that starts the task over.
    """
    if not edits:
        return None
    hints = dict.fromkeys(edit.hint for edit in edits if edit.hint)
    ways = [*hints, f"to accept the edit: flowctl run --accept {task}", f"to start over: {reset}"]
    message = "; ".join(edit.message for edit in edits)
    return UnacceptedError(
        f"an edit of '{task}' waits for acceptance: {message}", position=edits[0].position, hint="; ".join(ways)
    )


@dataclass(frozen=True, slots=True)
class EditWait:
    """A task to which an edit has yet to be applied.

    Attributes:
        tasks: names of the tasks whose transactions must end before.
        since: time when the wait began, RFC 3339.
    """

    tasks: tuple[str, ...]
    since: str


def begin_wait(root: Path, task: str, tasks: Sequence[str]) -> None:
    """Record that an edit is applied to a task after the transactions of some tasks have ended."""
    what = "its own transaction" if list(tasks) == [task] else f"transactions of {', '.join(tasks)}"
    TaskLog(root, task).write(
        "info", f"an edit waits for the end of {what}", waits_for=list(tasks), process=this_process()
    )


def end_wait(root: Path, task: str) -> None:
    """Record that all waiting edits of this task are accepted or undone."""
    TaskLog(root, task).write("info", "all waiting edits are accepted or undone", waits_for=[])


def find_wait(root: Path, task: str) -> EditWait | None:
    """Return the recorded wait of a task's edit; None if no edit waits, or the run that recorded the wait has ended."""
    reported = [entry for entry in recent_entries(root, task) if "waits_for" in entry][-1:]
    for entry in reported:
        if entry["waits_for"] and not is_dead(entry["process"]):
            return EditWait(tuple(entry["waits_for"]), entry["at"])
    return None


SHARED = "/"
"""Prefix of parts with shared code; no transform's name begins with it."""

_REDUCTIONS = "/reductions"
"""The part with the reductions of derived documents."""


def fingerprints_of(spec: DerivationSpec) -> dict[str, str]:
    """Return the fingerprint of each part of a derivation, by `state_key` or name of shared code."""
    parts = {
        transform.input.state_key: f"{transform.input.source} {hash_of(transform)}" for transform in spec.transforms
    }
    code = find_runtime(spec.connector).shared_code(spec)
    if code is not None:
        parts[f"{SHARED}{code.name}"] = _hash(code.text)
    reductions = annotated_locations(spec.collection.write_schema)
    parts[_REDUCTIONS] = _hash(orjson.dumps({at: text for at, text in reductions.items() if text}).decode())
    return parts


def shared_parts(fingerprints: Mapping[str, str]) -> list[str]:
    """Return the keys of the code that transforms share."""
    return [key for key in fingerprints if key.startswith(SHARED) and key != _REDUCTIONS]


def edits_of(
    spec: DerivationSpec,
    state: TaskState,
    upper: int | None = None,
    *,
    reset: str | None = None,
    reported: Collection[str] = (),
) -> tuple[Edit, ...]:
    """Return every edit made after a task's output began: recorded edits, and edits that the next run will record.

    Args:
        spec: the derivation as it is now.
        state: recorded state of the task.
        upper: the upper of the output, from which on new edits apply; None if the task does not run now.
        reset: the command that starts the task over; None for the command of a task without readers.
        reported: names of removed transforms that another edit reports.
    """
    if not state.transactions or not state.fingerprints:
        return ()
    plain = f"flowctl reset --task {spec.name}"
    command = reset or plain
    now, before = fingerprints_of(spec), state.fingerprints
    begun_again = {name_of(key) for key in now if key not in before}
    remembered = [
        replace(edit, hint=edit.hint.replace(f"{plain} --cascade", plain).replace(plain, command))
        for edit in state.edits
        if name_of(edit.part) not in begun_again
    ]
    new = [replace(edit, at=upper) for edit in _compare(spec, now, before, command, reported)]
    return tuple(dict.fromkeys((*remembered, *new)))  # an edit and its undoing at one `upper` are equal


def _compare(
    spec: DerivationSpec, now: Mapping[str, str], before: Mapping[str, str], reset: str, reported: Collection[str]
) -> Iterator[Edit]:
    names = {name_of(key) for key in now}
    for key, part in now.items():
        if key not in before or before[key] == part:
            continue
        if key == _REDUCTIONS:
            message = "its reductions were edited: readers use the new ones; stored documents stay as they were reduced"
            yield Edit(key, message, f"to derive them again, start over: {reset}")
        elif key.startswith(SHARED) or source_of(before[key]) == source_of(part):
            is_shared = key.startswith(SHARED)
            what = f"the {key.removeprefix(SHARED)}" if is_shared else f"the lambda of '{name_of(key)}'"
            message = f"{what} was edited; documents published before stay unchanged"
            ways = "to derive all again and add the results, raise 'backfill'; to replace them, start over"
            if counts_twice(spec):
                ways = "a raised 'backfill' would add all results a second time; to replace them, start over"
            yield Edit(key, message, f"{ways}: {reset}")
    for key in before:
        name = name_of(key)
        if name not in names and name not in reported and not key.startswith(SHARED):
            message = f"transform '{name}' was removed; its published documents stay"
            yield Edit(key, message, f"to remove them, start over: {reset}")


_ADDS = re.compile(r"(^| and )(sum|append)\b")
"""Annotations, in the texts of `annotated_locations`, that count a document twice if it is published twice."""


def counts_twice(spec: DerivationSpec) -> bool:
    """Return whether the reduction of a derived collection counts results twice that are published twice."""
    schemas = (spec.collection.write_schema, spec.collection.read_schema)
    return any(_ADDS.search(text) for schema in schemas for text in annotated_locations(schema).values())


def name_of(key: str) -> str:
    """Return the transform of a `state_key` or `former_key`, without its `backfill`."""
    return binding_of(key.partition(" ")[0])


def source_of(fingerprint: str) -> str:
    """Return the source in a transform's fingerprint."""
    return fingerprint.partition(" ")[0]


def hash_of(transform: TransformSpec) -> str:
    """Return the part of a transform's fingerprint that an edit of its lambda changes."""
    return _hash(transform.script.text if transform.script else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]
