"""Acceptance: an edit after which a task would give what no fresh run gives waits until somebody accepts it.

Most edits hold from now on. Some do more than that: what a task has published or stored would be counted a second
time, or would be continued by other rules than those that made it. Nothing fails by that, and it cannot be taken back.
So such an edit stops the task, and no other; `flowctl run --accept` lets it go on once, and what was accepted is
remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.errors import UnacceptedError
from derive.position import Position
from derive.storage.metadata.descriptions import Edit
from derive.storage.roles import Kept, Runnable


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """An edit that waits to be accepted.

    Attributes:
        part: what was edited: an input, by state key.
        message: what was edited, and what would follow.
        hint: ways out, beside acceptance and starting over.
        position: where the part is written.
        accepted: what has followed, once the edit is accepted.
        former: name of an input that is not in the catalog any more, and that the edit is about as well.
    """

    part: str
    message: str
    hint: str
    position: Position
    accepted: str
    former: str | None = None

    def remembered(self, upper: int, reset: str) -> Edit:
        """The edit as it is remembered once it was accepted.

        Args:
            upper: of the task, from which time on it is in force.
            reset: the command that starts the task over.
        """
        return Edit(self.part, self.accepted, f"to be rid of that start over: {reset}", upper)


def reset_command(store: Kept | Runnable, name: str) -> str:
    """The command that starts a task over, with `--cascade` where tasks that have run read it."""
    readers = store.rights.readers([name]) - {name}
    is_read = any(store.task(reader) is not None for reader in readers)
    return f"flowctl reset --task {name}{' --cascade' if is_read else ''}"


def refusal_of(task: str, edits: Sequence[Unaccepted], reset: str) -> UnacceptedError | None:
    """The error of a task with edits that wait; None if there are none.

    Args:
        task: its name.
        edits: those that wait.
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
