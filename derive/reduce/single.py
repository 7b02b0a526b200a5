"""The reduction of a single document, which often changes nothing, so that readers need not parse it."""

from __future__ import annotations

from derive.reduce.reduction import Choice, Location

_KEEPING = ("append", "firstWriteWins", "lastWriteWins", "maximize", "minimize")
"""Strategies that keep a value unchanged if there is none before it."""


def takes_last(root: Location) -> bool:
    """Return true if every full reduction returns the last document unchanged."""
    if isinstance(root, Choice) or root.conflict:
        return False
    annotation = root.annotation
    return annotation is None or (annotation.strategy == "lastWriteWins" and not annotation.delete)


def keeps_single(root: Location) -> bool:
    """Return true if every full reduction of a single document, an object, returns it unchanged.

    Return False if that depends on the values.
    """
    if isinstance(root, Choice) or root.conflict:
        return False
    if root.annotation is None or root.annotation.strategy != "merge":
        return _keeps_any(root)
    if root.annotation.delete or root.patterns:
        return False
    return all(map(_keeps_any, (*root.properties.values(), root.others(()))))


def _keeps_any(location: Location) -> bool:
    """Return true if a value of any type is kept unchanged."""
    if isinstance(location, Choice) or location.conflict:
        return False
    annotation = location.annotation
    if annotation is None:
        return True
    return annotation.strategy in _KEEPING and not annotation.key and not annotation.delete
