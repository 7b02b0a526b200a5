"""What was probably meant: the closest known name, if it is close."""

from __future__ import annotations

from collections.abc import Iterable

_FAR = 4


def distance(left: str, right: str) -> int:
    """Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for place, letter in enumerate(left, start=1):
        earlier, before, row = before, row, [place]
        for other, candidate in enumerate(right, start=1):
            best = min(before[other] + 1, row[other - 1] + 1, before[other - 1] + (letter != candidate))
            if place > 1 and other > 1 and letter == right[other - 2] and left[place - 2] == candidate:
                best = min(best, earlier[other - 2] + 1)
            row.append(best)
    return row[-1]


def suggest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, if the distance is at most 4 and half the name."""
    ranked = sorted((distance(name, each), each) for each in known if abs(len(each) - len(name)) <= _FAR)
    if ranked and ranked[0][0] <= min(_FAR, (len(name) + 1) // 2):
        return ranked[0][1]
    return None
