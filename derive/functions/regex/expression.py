r"""A regular expression as programs of RE2, its matches in texts, and the spans of a match's groups.

An ASCII text is matched as it is. Any other text is encoded with one byte per character; a byte stands for all
characters that the expression does not distinguish. Positions therefore equal positions in the text, `\b` knows letters
beyond ASCII, and programs are small.

To find the spans of groups, RE2 tells whether a part of the expression matches between two positions of the whole
match. The spans of parts are determined from left to right, and no span is tried twice.

PostgreSQL's rule decides which match is found: the first to begin, and of these the longest or the shortest, as the
whole expression prefers. RE2 finds it in time that is linear in the text, and other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import re2

from derive.errors import SqlError
from derive.functions.regex.parser import Parsed, options_of, parse
from derive.functions.regex.tree import (
    Alternation,
    CharacterSet,
    Concatenation,
    Constraint,
    Group,
    Node,
    Repetition,
    has_group,
    has_ordered_lengths,
    invalid,
    is_mixed,
    is_word,
    parts_of,
    preference,
)
from derive.functions.statement_context import check_cancelled

_Node = TypeVar("_Node", bound=Node)
_Derived = TypeVar("_Derived")
Signature: TypeAlias = tuple[bool, ...]
"""Properties of a character: newline, word character, and membership in each of an expression's sets."""

_MOST_BYTES = 2 << 20
"""Maximum memory of a program and of RE2's cache, in bytes."""
_LONGEST = 200_000
"""Maximum length of a program as text, in characters."""
_WORDS = bytes(code for code in range(128) if is_word(chr(code)))
_OTHERS = bytes(code for code in range(256) if code not in _WORDS and code != 0x0A)
_NOTHING = r"[^\x00-\xff]"


class Programs:
    """Programs for the parts of one expression, over one choice of bytes."""

    def __init__(self, letters: Mapping[CharacterSet, bytes]) -> None:
        self._letters = letters
        self._programs: dict[object, Any] = {}
        self._derived: dict[object, Any] = {}

    def derived(self, node: _Node, derive: Callable[[_Node], _Derived]) -> _Derived:
        """Return a value derived from a part, computed once."""
        key = (node, derive)
        if key not in self._derived:
            self._derived[key] = derive(node)
        derived: _Derived = self._derived[key]
        return derived

    def longest(self, node: Node) -> Any:
        """Return the program of the longest match."""
        return self._program((node, "longest"), lambda: self._form(node, None), is_longest=True)

    def first(self, node: Node) -> Any:
        """Return the program of the earliest match, whose repetitions prefer short matches."""
        return self._program((node, "first"), lambda: self._form(node, False), is_longest=False)

    def halves(self, left: Node, right: Node, *, is_greedy: bool) -> Any:
        """Return the program of two parts in a row; the first is captured, and prefers a long match if `is_greedy`."""
        key = (left, right, is_greedy)
        form = lambda: f"({self._form(left, is_greedy)}){self._form(right, None)}"  # noqa: E731
        return self._program(key, form, is_longest=False)

    def _program(self, key: object, form: Callable[[], str], *, is_longest: bool) -> Any:
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _compiled(form(), is_longest=is_longest)
        return program

    def _form(self, node: Node, is_greedy: bool | None) -> str:
        """Return a part in RE2's syntax.

        Args:
            node: the part.
            is_greedy: whether repetitions prefer long matches; None for their own preference.
        """
        match node:
            case CharacterSet():
                return _class(self._letters[node])
            case Constraint():
                return node.value
            case Group(body=body):
                return self._form(body, is_greedy)
            case Concatenation(parts=parts):
                return f"(?:{''.join(self._form(part, is_greedy) for part in parts)})"
            case Alternation(branches=branches):
                return f"(?:{'|'.join(self._form(branch, is_greedy) for branch in branches)})"
            case Repetition(body=body, least=least, most=most):
                takes_much = node.is_greedy is not False if is_greedy is None else is_greedy
                count = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
                return f"(?:{self._form(body, is_greedy)}){count}{'' if takes_much else '?'}"


def _compiled(form: str, *, is_longest: bool) -> Any:
    if len(form) > _LONGEST:
        raise invalid("regular expression is too complex")
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.longest_match = is_longest
    options.log_errors = False
    options.max_mem = _MOST_BYTES
    try:
        return re2.compile(form.encode(), options)
    except re2.error as exc:
        raise invalid("regular expression is too complex") from exc


def _class(letters: bytes) -> str:
    """Return a character class of some bytes."""
    if len(letters) == 1:
        return f"\\x{letters[0]:02x}"
    ranges: list[list[int]] = []
    for byte in sorted(letters):
        if ranges and ranges[-1][1] == byte - 1:
            ranges[-1][1] = byte
        else:
            ranges.append([byte, byte])
    written = "".join(f"\\x{begin:02x}-\\x{end:02x}" for begin, end in ranges)
    return f"[{written}]" if written else _NOTHING


class Alphabet:
    """The characters that an expression distinguishes."""

    def __init__(self, root: Node) -> None:
        parts = parts_of(root)
        self._sets = tuple(dict.fromkeys(part for part in parts if isinstance(part, CharacterSet)))
        self._has_boundaries = any(part in {Constraint.BOUNDARY, Constraint.NO_BOUNDARY} for part in parts)
        self._signatures: dict[str, Signature] = {}

    def of_ascii(self) -> Programs:
        """Return programs for ASCII texts."""
        letters = [chr(code) for code in range(128)]
        return Programs({part: bytes(ord(letter) for letter in letters if letter in part) for part in self._sets})

    def signature(self, letter: str) -> Signature:
        """Return the properties by which the expression distinguishes a character from other characters."""
        known = self._signatures.get(letter)
        if known is None:
            word = self._has_boundaries and is_word(letter)
            known = (letter == "\n", word, *(letter in part for part in self._sets))
            self._signatures[letter] = known
        return known

    def of_signatures(self, signatures: Iterable[Signature]) -> tuple[Mapping[Signature, int], Programs]:
        """Return a byte for each signature, and programs for texts of these bytes.

        Raises:
            SqlError: there are too many (2201B).
        """
        words = iter(_WORDS)
        others = iter(_OTHERS if self._has_boundaries else bytes(code for code in range(256) if code != 0x0A))
        bytes_of: dict[Signature, int] = {}
        for signature in sorted(signatures):
            is_newline, is_of_word, *_ = signature
            byte = 0x0A if is_newline else next(words if is_of_word else others, None)
            if byte is None:
                raise invalid("regular expression is too complex")
            bytes_of[signature] = byte
        letters = {
            part: bytes(byte for signature, byte in bytes_of.items() if signature[2 + index])
            for index, part in enumerate(self._sets)
        }
        return bytes_of, Programs(letters)


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
    """Return the position at which the first of two parts ends."""
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
    raise AssertionError("the two parts of an expression do not divide its match")


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
    """Return the given span if its preferred matches, one after the other, reach its end; otherwise None."""
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


_MOST_WORK = 10_000_000_000
"""Maximum product of the lengths of a text and of a program."""
_PIECE = 1 << 18
"""Number of characters that are converted to bytes before other threads may run."""
_MOST_CHOICES = 16
_SHORT = 10_000
"""Maximum length, in characters, of a text that is searched without a check for cancellation."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A searched text.

    Attributes:
        text: the text itself.
        content: one byte per character.
        programs: programs for such bytes.
    """

    text: str
    content: bytes
    programs: Programs


class RegularExpression:
    """A regular expression.

    Attributes:
        groups: number of capturing groups.
    """

    def __init__(self, parsed: Parsed) -> None:
        self.groups = parsed.groups
        self._root = parsed.root
        self._prefers_long = preference(parsed.root) is not False
        self._alphabet = Alphabet(parsed.root)
        self._of_ascii = self._alphabet.of_ascii()
        self._choices: dict[frozenset[Signature], tuple[Mapping[Signature, int], Programs]] = {}
        self._of_ascii.longest(parsed.root)

    def subject(self, text: str) -> Subject:
        """Return a text prepared for searches.

        Raises:
            SqlError: the text is too long for an expression of this length (54000).
        """
        if len(text) > _SHORT:
            check_cancelled()
        subject = Subject(text, text.encode(), self._of_ascii) if text.isascii() else self._mapped(text)
        if len(text) * subject.programs.longest(self._root).programsize > _MOST_WORK:
            hint = "Search a part of it, or search for less at once."
            raise SqlError("54000", "the text is too long for this regular expression", hint=hint)
        return subject

    def _mapped(self, text: str) -> Subject:
        letters: set[str] = set()
        for begin in range(0, len(text), _PIECE):
            letters.update(text[begin : begin + _PIECE])
            check_cancelled()
        signatures = {letter: self._alphabet.signature(letter) for letter in letters}
        key = frozenset(signatures.values())
        choice = self._choices.get(key)
        if choice is None:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices = {}
            choice = self._choices[key] = self._alphabet.of_signatures(key)
        bytes_of, programs = choice
        table = {ord(letter): bytes_of[signature] for letter, signature in signatures.items()}
        pieces: list[bytes] = []
        for begin in range(0, len(text), _PIECE):
            pieces.append(text[begin : begin + _PIECE].translate(table).encode("latin-1"))
            check_cancelled()
        return Subject(text, b"".join(pieces), programs)

    def is_in(self, text: str) -> bool:
        """Return whether the expression matches somewhere in a text."""
        subject = self.subject(text)
        return subject.programs.first(self._root).search(subject.content) is not None

    def search(self, subject: Subject, begin: int = 0) -> Span | None:
        """Return the first match from a position on; None if there is none."""
        if self._prefers_long:
            match = subject.programs.longest(self._root).search(subject.content, begin)
            return match.span() if match else None
        match = subject.programs.first(self._root).search(subject.content, begin)
        if match is None:
            return None
        first, last = match.span()
        end = shortest(subject.programs, self._root, subject.content, first, first, last)
        return first, last if end is None else end

    def searches(self, subject: Subject, begin: int = 0) -> Iterator[Span]:
        """Yield the matches from a position on."""
        while begin <= len(subject.content):
            check_cancelled()
            span = self.search(subject, begin)
            if span is None:
                return
            yield span
            begin = span[1] + (span[0] == span[1])

    def parts(self, subject: Subject, span: Span) -> list[Span | None]:
        """Return the span of the whole match, then the span of each group."""
        spans: list[Span | None] = [None] * (self.groups + 1)
        if self.groups:
            dissect(subject.programs, self._root, subject.content, span, spans)
        spans[0] = span
        return spans


@lru_cache(maxsize=128)
def regular_expression(expression: str, flags: str = "") -> RegularExpression:
    """Return a compiled regular expression of PostgreSQL.

    Args:
        expression: text in the syntax of advanced expressions.
        flags: letters of PostgreSQL's regexp functions.

    Raises:
        SqlError: 2201B, the expression is invalid; 22023, a flag is unknown; 0A000, matching in linear time is
            not possible.
    """
    check_cancelled()  # compiling a long expression takes seconds, too long for a request with an immediate answer
    return RegularExpression(parse(expression, options_of(flags)))
