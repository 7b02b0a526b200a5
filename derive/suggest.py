"""Suggest the closest known name for a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import commonprefix

_FAR = 4


def distance(left: str, right: str, limit: int | None = None) -> int:
    """Return the optimal string alignment distance.

    The distance counts insertions, deletions, substitutions and swaps of neighbours.

    Args:
        left: one text.
        right: the other text.
        limit: the function may stop early and return any number greater than `limit` if the distance is greater.
    """
    if limit is not None:
        left, right = _differing(left, right)
        if abs(len(left) - len(right)) > limit:
            return limit + 1
    before: list[int] = []
    row = list(range(len(right) + 1))
    for index, letter in enumerate(left, start=1):
        earlier, before, row = before, row, [index]
        for other, candidate in enumerate(right, start=1):
            best = min(before[other] + 1, row[other - 1] + 1, before[other - 1] + (letter != candidate))
            if index > 1 and other > 1 and letter == right[other - 2] and left[index - 2] == candidate:
                best = min(best, earlier[other - 2] + 1)
            row.append(best)
        if limit is not None and min(row) > limit and min(before) > limit:
            return limit + 1
    return row[-1]


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`; None if every distance is above 4 or half the name's length."""
    limit = min(_FAR, (len(name) + 1) // 2)
    closest: str | None = None
    for candidate in sorted(known, key=lambda candidate: (-len(commonprefix((name, candidate))), candidate)):  # noqa: RUF071 (characters are meant)
        far = distance(name, candidate, limit)
        if far < limit or (far == limit and (closest is None or candidate < closest)):
            closest, limit = candidate, far
    return closest


def _differing(left: str, right: str) -> tuple[str, str]:
    """Return two texts without their common prefix and suffix."""
    begin = len(commonprefix((left, right)))  # noqa: RUF071 (characters are meant)
    left, right = left[begin:], right[begin:]
    end = 0
    for end in range(min(len(left), len(right))):
        if left[-1 - end] != right[-1 - end]:
            break
    else:
        end = min(len(left), len(right))
    return left[: len(left) - end], right[: len(right) - end]
