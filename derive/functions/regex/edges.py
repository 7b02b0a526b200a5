r"""Begins and ends of words: `\m` and `\M` as `\b`, depending on the neighboring part.

RE2 only has `\b`. Before a part that begins with a word character, `\m` is `\b`; after a part that ends with a word
character, so is `\M`.
"""

from __future__ import annotations

from dataclasses import replace

from derive.functions.regex.characters import CharacterSet
from derive.functions.regex.fault import unsupported
from derive.functions.regex.tree import Alternation, Concatenation, Constraint, Group, Node, Repetition


def with_boundaries(node: Node) -> Node:
    r"""Return a tree with `\b` instead of `\m` and `\M`.

    Raises:
        SqlError: 0A000, the text decides whether words begin or end there.
    """
    match node:
        case Constraint.WORD_START | Constraint.WORD_END:
            return with_boundaries(Concatenation((node,)))
        case Group(index=index, body=body):
            return Group(index, with_boundaries(body))
        case Repetition(body=body):
            return replace(node, body=with_boundaries(body))
        case Alternation(branches=branches):
            return Alternation(tuple(map(with_boundaries, branches)))
        case Concatenation(parts=parts):
            return Concatenation(tuple(_bounded(list(parts))))
    return node


def _bounded(parts: list[Node]) -> list[Node]:
    for index, part in enumerate(parts):
        if part is Constraint.WORD_START:
            _make_begin(parts, index)
        elif part is Constraint.WORD_END:
            parts.reverse()
            _make_begin(parts, len(parts) - 1 - index)
            parts.reverse()
    return [with_boundaries(part) for part in parts]


def _make_begin(parts: list[Node], index: int) -> None:
    r"""Replace the start of a word in a list of parts with `\b`; in a reversed list, the end of a word."""
    is_reversed = parts[index] is Constraint.WORD_END
    behind = index + 1
    while behind < len(parts) and isinstance(parts[behind], Constraint):
        behind += 1
    following = parts[behind] if behind < len(parts) else Concatenation(())
    if not _has_only_words(following, is_reversed=is_reversed):
        narrowed = _narrowed(following, is_reversed=is_reversed)
        before = parts[index - 1] if index else Concatenation(())
        if narrowed is not None:
            parts[behind] = narrowed
        elif not _has_no_words(before):
            raise unsupported(
                "\\m and \\M are not supported where it depends on the text whether a word is beside them",
                r"Have \m followed by \w, and \M preceded by it, or use \y.",
            )
    parts[index] = Constraint.BOUNDARY


def _has_only_words(node: Node, *, is_reversed: bool) -> bool:
    """Return whether all matches have a first character (or last, if reversed), and it is a word character."""
    match node:
        case CharacterSet():
            return node.has_only_words()
        case Group(body=body):
            return _has_only_words(body, is_reversed=is_reversed)
        case Repetition(body=body, least=least):
            return least > 0 and _has_only_words(body, is_reversed=is_reversed)
        case Alternation(branches=branches):
            return all(_has_only_words(branch, is_reversed=is_reversed) for branch in branches)
        case Concatenation(parts=parts):
            long = [part for part in parts if not isinstance(part, Constraint)]
            return bool(long) and _has_only_words(long[-1 if is_reversed else 0], is_reversed=is_reversed)
    return False


def _has_no_words(node: Node) -> bool:
    """Return whether the part matches one or more characters, none of which is a word character."""
    match node:
        case CharacterSet():
            return node.has_no_words()
        case Repetition(body=body, least=least):
            return least > 0 and _has_no_words(body)
    return node in {Constraint.START, Constraint.END}


def _narrowed(node: Node, *, is_reversed: bool) -> Node | None:
    """Return the same part, restricted to a word character at its begin or end; None if there is no simple form."""
    match node:
        case CharacterSet():
            return replace(node, is_of_words=True)
        case Repetition(body=CharacterSet() as body, least=least, most=most) if least:
            rest = replace(node, least=least - 1, most=None if most is None else most - 1)
            narrowed = replace(body, is_of_words=True)
            return Concatenation((rest, narrowed) if is_reversed else (narrowed, rest))
    return None
