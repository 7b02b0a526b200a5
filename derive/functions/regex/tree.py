"""The tree of a regular expression, and its preference of long or short matches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from derive.functions.regex.characters import CharacterSet


class Constraint(Enum):
    """A condition between two characters."""

    START = r"\A"
    END = r"\z"
    LINE_START = "(?m:^)"
    LINE_END = "(?m:$)"
    BOUNDARY = r"\b"
    NO_BOUNDARY = r"\B"
    WORD_START = r"\m"
    WORD_END = r"\M"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A capturing group."""

    index: int
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """Parts one after the other; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    """One of two or more parts."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """A repeated part.

    Attributes:
        body: repeated part.
        least: minimum number of iterations.
        most: maximum number of iterations; None for any number.
        is_greedy: whether many iterations are preferred; None if the number is given.
    """

    body: Node
    least: int
    most: int | None
    is_greedy: bool | None


Node: TypeAlias = CharacterSet | Constraint | Group | Concatenation | Alternation | Repetition


def preference(node: Node) -> bool | None:
    """Return whether a part prefers a long match to a short one; None if the part has no preference."""
    match node:
        case Group(body=body):
            return preference(body)
        case Repetition(body=body, is_greedy=is_greedy):
            return preference(body) if is_greedy is None else is_greedy
        case Alternation():
            return True
        case Concatenation(parts=parts):
            return next((preferred for part in parts if (preferred := preference(part)) is not None), None)
    return None


def is_mixed(node: Node) -> bool:
    """Return whether a part prefers long matches in one place, and short matches in another."""
    preferred = {part.is_greedy for part in parts_of(node) if isinstance(part, Repetition)}
    preferred |= {True for part in parts_of(node) if isinstance(part, Alternation)}
    return {True, False} <= preferred


def parts_of(node: Node) -> list[Node]:
    """Return all parts of a tree, its root included."""
    match node:
        case Group(body=body) | Repetition(body=body):
            return [node, *parts_of(body)]
        case Concatenation(parts=parts) | Alternation(branches=parts):
            return [node, *(inner for part in parts for inner in parts_of(part))]
    return [node]


def has_group(node: Node) -> bool:
    """Return whether a part contains a capturing group."""
    return any(isinstance(part, Group) for part in parts_of(node))


def length_of(node: Node) -> int | None:
    """Return the length of all matches in characters; None if lengths differ."""
    match node:
        case CharacterSet():
            return 1
        case Group(body=body):
            return length_of(body)
        case Repetition(body=body, least=least, most=most):
            length = 0 if most == 0 else length_of(body)
            return least * length if length is not None and (least == most or not length) else None
        case Concatenation(parts=parts):
            lengths = [length_of(part) for part in parts]
            return None if None in lengths else sum(length for length in lengths if length is not None)
        case Alternation(branches=branches):
            lengths = list({length_of(branch) for branch in branches})
            return lengths[0] if len(lengths) == 1 else None
    return 0


def has_ordered_lengths(node: Node) -> bool:
    """Return whether matches of a part differ only in the number of iterations of one of its parts.

    Parts of no length are ignored.
    """
    if length_of(node) is not None:
        return True
    match node:
        case Group(body=body):
            return has_ordered_lengths(body)
        case Repetition(body=body, least=least, most=most):
            return length_of(body) is not None or (least == most == 1 and has_ordered_lengths(body))
        case Concatenation(parts=parts):
            varying = [part for part in parts if length_of(part) is None]
            return len(varying) == 1 and has_ordered_lengths(varying[0])
    return False
