"""A regular expression, and its matches in texts.

PostgreSQL's rule decides which match is found: the first to begin, and of these the longest or the shortest, as the
whole expression prefers. RE2 finds it in time that is linear in the text, and other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from derive.errors import SqlError
from derive.functions.cancellation import check_cancelled
from derive.functions.regex.dissection import Span, dissect, shortest
from derive.functions.regex.parser import Parsed, options_of, parse
from derive.functions.regex.program import Alphabet, Programs, Signature
from derive.functions.regex.tree import preference

_MOST_WORK = 10_000_000_000
"""Maximum product of the length of a text and that of a program."""
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
            SqlError: 54000, the text is too long for an expression of this length.
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
        SqlError: 2201B, the expression is invalid; 22023, there is no such flag; 0A000, matching in linear time is
            not possible.
    """
    check_cancelled()  # compiling a long expression takes seconds, too long for a request with an immediate answer
    return RegularExpression(parse(expression, options_of(flags)))
