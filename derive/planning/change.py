"""Changes of tasks, and differences between JSON values and between texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from derive.document.exact import dump_exact
from derive.document.pointer import JSON

Effect: TypeAlias = Literal["nothing", "new documents", "from the start", "endpoint", "waits", "refused"]
"""Effect of a change. In this order: no effect; an effect on documents that are read from now on; a source is read from
its start; columns of the endpoint change; the task waits for acceptance; the task stops until the change is undone or
the task is reset."""

TaskStatus: TypeAlias = Literal["unchanged", "added", "removed", "disabled", "changed", "waits", "refused"]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the last run of a task and its definition in the catalog.

    Attributes:
        part: the changed part, such as `fromOrders: lambda`.
        effect: kind of the effect.
        meaning: the effect, as a sentence without a full stop.
        before: the former value, as JSON; None if there was none.
        after: the present value, as JSON; None if there is none.
        diff: lines of a unified diff of the two values, for texts.
        key: the part in fingerprints of the task; empty for parts that fingerprints do not cover.
        documents: number of stored documents that are read because of the change.
        hint: ways to another effect; empty if missing.
    """

    part: str
    effect: Effect
    meaning: str
    before: JSON = None
    after: JSON = None
    diff: tuple[str, ...] = ()
    key: str = ""
    documents: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of one task.

    Attributes:
        name: name of the task.
        status: summary of the changes.
        changes: the changes, in the order of the catalog.
        former: name of the removed task that was probably renamed to this task; None if missing.
        notes: more information, such as the reason for an incomplete comparison.
        documents: number of stored documents of the sources, which the task would read after a start over.
        rate: documents per second in the last transactions; None if unknown.
        commands: commands that settle the changes, each with its effect.
    """

    name: str
    status: TaskStatus
    changes: tuple[Change, ...] = ()
    former: str | None = None
    notes: tuple[str, ...] = ()
    documents: int | None = None
    rate: float | None = None
    commands: tuple[tuple[str, str], ...] = ()

    def seconds(self, documents: int | None) -> float | None:
        """Return the time for reading some documents at the task's rate, in seconds; None if unknown."""
        return documents / self.rate if documents is not None and self.rate else None


def text_diff(before: str | None, after: str | None) -> tuple[str, ...]:
    """Return the lines of a unified diff of two texts, without its header.

    >>> text_diff("SELECT 1;", "SELECT 2;")
    ('-SELECT 1;', '+SELECT 2;')
    """
    old, new = ((text or "").strip("\n").splitlines() for text in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    is_one = sum(line.startswith("@@") for line in lines) == 1
    return tuple(line for line in lines if not (is_one and line.startswith("@@")))


def json_differences(before: JSON, after: JSON, pointer: str = "") -> Iterator[tuple[str, JSON, JSON]]:
    """Yield the JSON pointer and both values of each difference; a value that is missing is None.

    >>> list(json_differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}}))
    [('/a', 1, None), ('/b/c', 2, 3)]
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            token = name.replace("~", "~0").replace("/", "~1")
            yield from json_differences(before.get(name), after.get(name), f"{pointer}/{token}")
    elif dump_exact(before) != dump_exact(after):
        yield pointer, before, after
