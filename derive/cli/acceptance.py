"""Asks on the terminal whether an edit that waits for acceptance is accepted.

A run asks only if standard input and standard error are terminals. In other cases the task waits, and the run prints
the reason and the commands.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from derive.errors import UnacceptedError

if TYPE_CHECKING:
    from derive.engine.task import Task
    from derive.protocol.specs import CatalogSpec
    from derive.storage.roles import Maintainable


def ask_acceptance(
    store: Maintainable, catalog: CatalogSpec, tasks: Sequence[str] | None, accepted: Collection[str]
) -> list[str]:
    """Ask for each task with a waiting edit whether the edit is accepted, and return the tasks with the answer yes.

    Args:
        store: the data folder.
        catalog: the catalog.
        tasks: names of the tasks to run; None for all.
        accepted: names of tasks whose edits are accepted already.
    """
    from derive.cli.console import is_interactive, print_error
    from derive.engine.edits import refusal_of, reset_command
    from derive.planning.pending import find_waiting_tasks

    if not is_interactive():
        return []
    agreed = []
    for name, edits in find_waiting_tasks(store, catalog, tasks).items():
        error = refusal_of(name, edits, reset_command(store, name))
        if error is not None and name not in accepted:
            print_error(error)
            if _ask(name):
                agreed.append(name)
    return agreed


def _ask(name: str) -> bool:
    from derive.cli.console import note

    note(f"accept this edit of '{name}'? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class AcceptanceQuestions:
    """Questions about edits that begin to wait while a run is at work; a thread waits for the answers.

    Args:
        tasks: the tasks of the run. There are no questions about their present edits, which were asked before the run.
        wake: called when an answer has arrived.
    """

    def __init__(self, tasks: Mapping[str, Task], wake: Callable[[], None]) -> None:
        self._asked = set(_waiting(tasks).items())
        self._wake = wake
        self._questions: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._agreed: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def update(self, tasks: Mapping[str, Task]) -> list[str]:
        """Ask about new waiting edits, and return the tasks whose present edits have the answer yes.

        Args:
            tasks: the tasks of the run.
        """
        from derive.cli.console import is_interactive

        waiting = _waiting(tasks)
        failed = {question for question in waiting.items() if tasks[question[0]].error is not None}
        new = failed - self._asked
        self._asked = (self._asked & set(waiting.items())) | new
        if new and is_interactive():
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="questions", daemon=True)
                self._thread.start()
            for question in sorted(new):
                self._questions.put(question)
        return [name for name, message in list(self._agreed.items()) if (name, message) in failed]

    def forget(self) -> None:
        """Drop the answers, because they were used, or because the catalog was edited after them."""
        self._agreed.clear()

    def _work(self) -> None:
        while True:
            name, message = self._questions.get()
            if (name, message) in self._asked and _ask(name):  # not if the edit was undone meanwhile
                self._agreed[name] = message
                self._wake()


def _waiting(tasks: Mapping[str, Task]) -> dict[str, str]:
    """Return the message of each task that was opened with a waiting edit."""
    errors = {name: task.beginning.error for name, task in tasks.items()}
    return {name: error.message for name, error in errors.items() if isinstance(error, UnacceptedError)}
