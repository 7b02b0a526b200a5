"""What a regular expression is made of, and whether it prefers long matches to short ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from derive.functions.regex.characters import CharacterSet


class Constraint(Enum):
    """What holds between two characters."""

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
    """What is remembered of a match."""

    index: int
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """One after the other; of nothing, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    """One of two or more."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Something again and again.

    Attributes:
        body: what is repeated.
        least: so often at least.
        most: so often at most; None for any number.
        is_greedy: whether rather often; None if the number is given.
    """

    body: Node
    least: int
    most: int | None
    is_greedy: bool | None


Node: TypeAlias = CharacterSet | Constraint | Group | Concatenation | Alternation | Repetition


def preference(node: Node) -> bool | None:
    """Whether a long match is preferred to a short one; None if it has one length as far as is said."""
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
    """Whether it prefers long matches in one place, and short ones in another."""
    preferred = {part.is_greedy for part in parts_of(node) if isinstance(part, Repetition)}
    preferred |= {True for part in parts_of(node) if isinstance(part, Alternation)}
    return {True, False} <= preferred


def parts_of(node: Node) -> list[Node]:
    """Everything that it is made of, itself included."""
    match node:
        case Group(body=body) | Repetition(body=body):
            return [node, *parts_of(body)]
        case Concatenation(parts=parts) | Alternation(branches=parts):
            return [node, *(inner for part in parts for inner in parts_of(part))]
    return [node]


def has_group(node: Node) -> bool:
    """Whether something of it is remembered."""
    return any(isinstance(part, Group) for part in parts_of(node))


def length_of(node: Node) -> int | None:
    """How long all its matches are; None if that differs."""
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
    """Whether its matches differ in how often one part of it comes, and in nothing else that has a length."""
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
