"""Waits of an edit: what a run tells other processes of tasks to which a later stage of an edit is yet to be applied.

It is told in the log of the task, and holds for as long as the run that has said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from derive.storage.metadata.process import is_dead, this_process
from derive.storage.task_log import TaskLog, recent_entries


@dataclass(frozen=True, slots=True)
class EditWait:
    """A task to which an edit is yet to be applied.

    Attributes:
        tasks: names of those whose transactions have to end before.
        since: when the edit was found to wait for them, RFC 3339.
    """

    tasks: tuple[str, ...]
    since: str


def begin_wait(root: Path, task: str, tasks: Sequence[str]) -> None:
    """Tell that an edit is applied to a task once the transactions of some tasks, or its own, have ended."""
    what = "its own transaction" if list(tasks) == [task] else f"transactions of {', '.join(tasks)}"
    TaskLog(root, task).write(
        "info", f"an edit is applied to it after {what}", waits_for=list(tasks), process=this_process()
    )


def end_wait(root: Path, task: str) -> None:
    """Tell that nothing of an edit waits any more for this task."""
    TaskLog(root, task).write("info", "no edit waits for it any more", waits_for=[])


def find_wait(root: Path, task: str) -> EditWait | None:
    """What an edit of a task waits for; None if it does not, or if the run that said so has ended."""
    told = [entry for entry in recent_entries(root, task) if "waits_for" in entry][-1:]
    for entry in told:
        if entry["waits_for"] and not is_dead(entry["process"]):
            return EditWait(tuple(entry["waits_for"]), entry["at"])
    return None
