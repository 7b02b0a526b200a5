"""Acceptance: an edit whose result differs from that of a fresh run waits until the user accepts it.

Most edits apply from now on. Some would count published or stored documents a second time, or would continue them by
other rules. Such an edit raises no error by itself, and cannot be undone. So the edit stops its task, and no other;
`flowctl run --accept` applies it once, and the task records the acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.errors import UnacceptedError
from derive.position import Position
from derive.storage.metadata.descriptions import Edit
from derive.storage.roles import Maintainable, Runnable


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """An edit that waits to be accepted.

    Attributes:
        part: the edited part: an input, by state key.
        message: the edit, and its consequence.
        hint: alternatives to acceptance and starting over.
        position: position of the part in the catalog.
        accepted: the message after the edit is accepted.
        former: name of an input that is not in the catalog any more, and that the edit also concerns.
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


def reset_command(store: Maintainable | Runnable, name: str) -> str:
    """Return the command that starts a task over, with `--cascade` if tasks that have run read it."""
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
    ways = [*hints, f"to accept that: flowctl run --accept {task}", f"to start over: {reset}"]
    message = "; ".join(edit.message for edit in edits)
    return UnacceptedError(
        f"an edit of '{task}' waits to be accepted: {message}", position=edits[0].position, hint="; ".join(ways)
    )
