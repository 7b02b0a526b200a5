"""Pending edits: a run reports the tasks to which it has yet to apply an edit, for other processes.

The report is an entry in the task's log, and is valid while the run is alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from derive.storage.metadata.process import is_dead, this_process
from derive.storage.task_log import TaskLog, recent_entries


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
        "info", f"an edit is applied to it after {what}", waits_for=list(tasks), process=this_process()
    )


def end_wait(root: Path, task: str) -> None:
    """Record that no edit waits for this task any more."""
    TaskLog(root, task).write("info", "no edit waits for it any more", waits_for=[])


def find_wait(root: Path, task: str) -> EditWait | None:
    """Return the wait of a task's edit; None without one, or if the recording run has ended."""
    told = [entry for entry in recent_entries(root, task) if "waits_for" in entry][-1:]
    for entry in told:
        if entry["waits_for"] and not is_dead(entry["process"]):
            return EditWait(tuple(entry["waits_for"]), entry["at"])
    return None
