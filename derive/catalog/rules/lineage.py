"""Lineage: the order of derivations, cycles, and the upstream derivations of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence


def upstream(names: Iterable[str], reads: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the derivations upstream of collections, directly or indirectly, including the derivations of these.

    Args:
        names: names of the collections.
        reads: names of the collections that each derivation reads, by its name.
    """
    reached: set[str] = set()
    pending = [*names]
    while pending:
        name = pending.pop()
        if name in reads and name not in reached:
            reached.add(name)
            pending += reads[name]
    return frozenset(reached)


def cycles(reads: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return groups of names that read one another, sources before readers.

    Source: Tarjan, "Depth-first search and linear graph algorithms" (1972), without recursion.

    >>> cycles({"a": ["b", "x"], "b": ["a"], "c": ["a"]})
    (('a', 'b'), ('c',))

    Args:
        reads: names that each name reads.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    stacked: set[str] = set()
    groups: list[tuple[str, ...]] = []
    order = {name: index for index, name in enumerate(reads)}
    work: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        stacked.add(name)
        work.append((name, iter(reads[name])))

    for root in reads:
        if root in index:
            continue
        enter(root)
        while work:
            name, sources = work[-1]
            following = next((source for source in sources if source in reads), None)
            if following is not None:
                if following not in index:
                    enter(following)
                elif following in stacked:
                    low[name] = min(low[name], index[following])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == index[name]:
                start = stack.index(name)
                group = stack[start:]
                del stack[start:]
                stacked.difference_update(group)
                groups.append(tuple(sorted(group, key=order.__getitem__)))
    return tuple(groups)
