"""The spans of a match's groups, as in PostgreSQL: each part of an expression prefers a long or a short match.

The span of the whole match is known, and RE2 tells whether a part matches between two positions. Parts are settled from
left to right, and no span is tried twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from derive.functions.cancellation import check_cancelled
from derive.functions.regex.program import Programs
from derive.functions.regex.tree import (
    Alternation,
    Concatenation,
    Group,
    Node,
    Repetition,
    has_group,
    has_ordered_lengths,
    is_mixed,
    preference,
)

Span: TypeAlias = tuple[int, int]
"""Begin and end of a match."""


def shortest(programs: Programs, node: Node, content: bytes, begin: int, least: int, most: int) -> int | None:
    """Return the first end, within bounds, of a match that begins at a position; None if there is none."""
    program = programs.longest(node)

    def reaches(end: int) -> bool:
        """Return whether a match ends between the least end and this one."""
        match = program.match(content, begin, end)
        return match is not None and match.end() >= least

    below, step = least - 1, 1
    while not reaches(end := min(below + step, most)):
        if end == most:
            return None
        below, step = end, 2 * step
    while end - below > 1:
        middle = (below + end) // 2
        below, end = (below, middle) if reaches(middle) else (middle, end)
    return end


def dissect(programs: Programs, node: Node, content: bytes, span: Span, spans: list[Span | None]) -> None:
    """Fill in the spans of a part's groups.

    Args:
        programs: programs for the content.
        node: the part.
        content: searched content.
        span: span of the part.
        spans: span of each group, filled in.
    """
    pending = [(node, span)]
    while pending:
        check_cancelled()
        node, (begin, end) = pending.pop()
        if not programs.derived(node, has_group):
            continue
        match node:
            case Group(index=index, body=body):
                spans[index] = (begin, end)
                pending.append((body, (begin, end)))
            case Alternation(branches=branches):
                chosen = next(branch for branch in branches if programs.longest(branch).fullmatch(content, begin, end))
                pending.append((chosen, (begin, end)))
            case Concatenation():
                left, right = programs.derived(node, _halves)
                middle = _middle(programs, left, right, content, (begin, end))
                pending += [(left, (begin, middle)), (right, (middle, end))]
            case Repetition():
                last = _last(programs, node, content, (begin, end))
                if last is not None:
                    pending.append((node.body, last))


def _middle(programs: Programs, left: Node, right: Node, content: bytes, span: Span) -> int:
    """Return the end of the first of two parts."""
    begin, end = span
    takes_much = preference(left) is not False
    if has_ordered_lengths(left):
        match = programs.halves(left, right, is_greedy=takes_much).fullmatch(content, begin, end)
        return int(match.end(1))
    rest = programs.longest(right)
    for middle in _ends(programs, left, content, span, takes_much=takes_much):
        check_cancelled()
        if rest.fullmatch(content, middle, end):
            return middle
    raise AssertionError("a match has no parts")


def _ends(programs: Programs, node: Node, content: bytes, span: Span, *, takes_much: bool) -> Iterator[int]:
    """Yield the possible ends of a part, the preferred ends first."""
    begin, end = span
    if takes_much:
        limit = end
        while limit >= begin and (match := programs.longest(node).match(content, begin, limit)):
            yield match.end()
            limit = match.end() - 1
    else:
        least: int | None = begin
        while least is not None and least <= end:
            least = shortest(programs, node, content, begin, least, end)
            if least is not None:
                yield least
                least += 1


def _halves(node: Concatenation) -> tuple[Node, Node]:
    """Split a concatenation in two as PostgreSQL does: plain parts, then each group, and each change of preference."""
    parts = node.parts
    plain = 0
    while plain < len(parts) and not has_group(parts[plain]) and not is_mixed(Concatenation(parts[: plain + 1])):
        plain += 1
    cut = max(plain, 1)
    left = parts[0] if cut == 1 else Concatenation(parts[:cut])
    right = parts[cut] if len(parts) - cut == 1 else Concatenation(parts[cut:])
    return left, right


def _last(programs: Programs, node: Repetition, content: bytes, span: Span) -> Span | None:
    """Return the span of a repetition's last iteration; None if there was no iteration."""
    begin, end = span
    if node.least:
        before, _ = programs.derived(node, _iterations)
        return _middle(programs, before, node.body, content, span), end
    if node.most == 0:
        return None
    if begin == end:  # an iteration that may be empty counts, unless it prefers to be short
        is_there = preference(node.body) is not False and programs.longest(node.body).fullmatch(content, begin, end)
        return span if is_there else None
    if node.most is None and (last := _hurried(programs, node, content, span)):
        return last
    while True:
        check_cancelled()
        _, rest = programs.derived(node, _iterations)
        middle = _middle(programs, node.body, rest, content, (begin, end))
        if middle == begin:  # an optional iteration is not empty: otherwise there would be no end of iterations
            middle = _first_progress(programs, node.body, rest, content, (begin, end))
        if middle == end or node.most == 1:
            return begin, end
        begin = middle
        node = rest


def _first_progress(programs: Programs, body: Node, rest: Node, content: bytes, span: Span) -> int:
    """Return the end of an iteration that is not empty, if the other iterations match from there."""
    begin, end = span
    others = programs.longest(rest)
    ends = _ends(programs, body, content, span, takes_much=preference(body) is not False)
    return next(middle for middle in ends if middle > begin and others.fullmatch(content, middle, end))


def _hurried(programs: Programs, node: Repetition, content: bytes, span: Span) -> Span | None:
    """Return the same span if the preferred matches, one after the other, reach the end; None otherwise."""
    begin, end = span
    takes_much = preference(node.body) is not False
    while True:
        check_cancelled()
        ends = _ends(programs, node.body, content, (begin, end), takes_much=takes_much)
        middle = next((middle for middle in ends if middle > begin), None)
        if middle is None or middle == end:
            return None if middle is None else (begin, end)
        begin = middle


def _iterations(node: Repetition) -> tuple[Repetition, Repetition]:
    """Return a repetition without its last iteration, and without its first."""
    fewer = None if node.most is None else node.most - 1
    fewest = max(0, node.least - 1)
    takes_much = preference(node) is not False
    before = Repetition(node.body, fewest, fewer, takes_much)
    return before, (node if fewer is None else replace(node, least=fewest, most=fewer))
