"""The programs that must run so that relations advance, for messages.

A message names all of them: a reader who starts only one meets the next error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from derive.algebra.relation import GlobalId
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import ObjectKind

DERIVES, MAINTAINS = "flowctl run", "flowctl sql serve"
"""The programs that derive collections, and that maintain materialized views."""


def programs_of(
    objects: Objects, ids: Collection[GlobalId], is_running: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Return the commands of the programs that advance relations and all that they read.

    Args:
        objects: the names of SQL, and the collections.
        ids: the relations.
        is_running: returns whether a run derives the collection of a name, so that the collection needs no other.
    """
    needed: set[str] = set()
    pending, seen = list(ids), set(ids)
    while pending:
        identifier = pending.pop()
        item, spec = objects.items.get(identifier), objects.collections.get(identifier)
        if spec is not None and not objects.is_sealed_by_hand(identifier) and not is_running(spec.name):
            needed.add(DERIVES)
        if item is not None:
            if item.kind is ObjectKind.MATERIALIZED_VIEW:
                needed.add(MAINTAINS)
            pending += item.uses - seen
            seen |= item.uses
    return [program for program in (DERIVES, MAINTAINS) if program in needed]


def as_commands(programs: Collection[str]) -> str:
    """Return one line for a shell that starts programs, the last one in the foreground.

    >>> as_commands(["flowctl run", "flowctl sql serve"])
    'flowctl run & flowctl sql serve'
    """
    return " & ".join(programs)
