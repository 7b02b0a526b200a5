"""What reducing does to a single document: often nothing, which spares who reads it the parsing."""

from __future__ import annotations

from derive.reduce.reduction import Choice, Location

_KEEPING = ("append", "firstWriteWins", "lastWriteWins", "maximize", "minimize")
"""Strategies that take any value as it is, if there is none before it."""


def takes_last(root: Location) -> bool:
    """Whether the whole history of a key always reduces to its last document, as that is."""
    if isinstance(root, Choice) or root.conflict:
        return False
    annotation = root.annotation
    return annotation is None or (annotation.strategy == "lastWriteWins" and not annotation.delete)


def keeps_single(root: Location) -> bool:
    """Whether a history of one document, which is an object, always reduces to that document as it is.

    Where it depends on the values, the answer is no.
    """
    if isinstance(root, Choice) or root.conflict:
        return False
    if root.annotation is None or root.annotation.strategy != "merge":
        return _keeps_any(root)
    if root.annotation.delete or root.patterns:
        return False
    return all(map(_keeps_any, (*root.properties.values(), root.others(()))))


def _keeps_any(location: Location) -> bool:
    """Whether a value of any kind stays as it is."""
    if isinstance(location, Choice) or location.conflict:
        return False
    annotation = location.annotation
    if annotation is None:
        return True
    return annotation.strategy in _KEEPING and not annotation.key and not annotation.delete
