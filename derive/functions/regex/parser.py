"""Parser of PostgreSQL's advanced regular expressions: escapes, bracket expressions, edges of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from derive.errors import SqlError
from derive.functions.regex.tree import (
    CLASSES,
    Alternation,
    CharacterClass,
    CharacterSet,
    Concatenation,
    Constraint,
    Group,
    Node,
    Repetition,
    invalid,
    unsupported,
)


@dataclass(frozen=True, slots=True)
class Escape:
    """A reference to the text of a group."""

    reference: int


Escaped: TypeAlias = str | CharacterClass | Constraint | Escape

_PLAIN: Mapping[str, Escaped] = {
    "a": "\a",
    "b": "\b",
    "B": "\\",
    "e": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "d": CharacterClass("digit"),
    "D": CharacterClass("digit", True),
    "s": CharacterClass("space"),
    "S": CharacterClass("space", True),
    "w": CharacterClass("word"),
    "W": CharacterClass("word", True),
    "A": Constraint.START,
    "Z": Constraint.END,
    "m": Constraint.WORD_START,
    "M": Constraint.WORD_END,
    "y": Constraint.BOUNDARY,
    "Y": Constraint.NO_BOUNDARY,
}
_HEXADECIMAL = {"u": (4, 4), "U": (8, 8), "x": (1, 255)}


def escape_at(text: str, at: int, groups: int) -> tuple[Escaped, int]:
    """Return the meaning of an escape, and the position after it.

    Args:
        text: text of the expression.
        at: position of the backslash.
        groups: number of groups that begin before it.

    Raises:
        SqlError: the escape is unknown (2201B).
    """
    if at + 1 >= len(text):
        raise _no_escape()
    character, at = text[at + 1], at + 2
    if not character.isalnum():
        return character, at
    if character in _PLAIN:
        return _PLAIN[character], at
    if character == "c" and at < len(text):
        return chr(ord(text[at]) & 0o37), at + 1
    if character in _HEXADECIMAL:
        least, most = _HEXADECIMAL[character]
        code, at = _number(text, at, 16, least, most)
        return _character(code), at
    if character in "123456789":
        number, end = _number(text, at - 1, 10, 1, 255)
        if end == at or 0 < number <= groups:
            return Escape(number), end
    if character in "01234567":
        code, end = _number(text, at - 1, 8, 1, 3)
        return (_character(code), end) if code <= 0xFF else (_character(code >> 3), end - 1)
    raise _no_escape()


def _number(text: str, at: int, base: int, least: int, most: int) -> tuple[int, int]:
    digits = "0123456789abcdef"[:base]
    end = at
    while end < len(text) and end - at < most and text[end].lower() in digits:
        end += 1
    if end - at < least:
        raise _no_escape()
    return int(text[at:end], base), end


def _character(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _no_escape()
    return chr(code)


def _no_escape() -> Exception:
    return invalid("invalid escape \\ sequence")


class Bracket:
    """A bracket expression, from `[` to `]`.

    Attributes:
        is_negated: whether the expression matches all other characters.
        ranges: pairs of first and last code point.
        classes: whole classes.
        end: position after the expression.
    """

    def __init__(self, text: str, begin: int, *, takes_escapes: bool) -> None:
        self._text = text
        self._takes_escapes = takes_escapes
        self.end = begin + 1
        self.is_negated = self._accept("^")
        self.ranges: list[tuple[int, int]] = []
        self.classes: list[CharacterClass] = []

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self.end):
            self.end += len(text)
            return True
        return False

    def read(self) -> None:
        """Read the expression up to its end.

        Raises:
            SqlError: the expression is invalid (2201B).
        """
        begin = self.end
        while True:
            if self.end >= len(self._text):
                raise invalid("brackets [] not balanced")
            if self.end > begin and self._accept("]"):
                return
            is_first = self.end == begin
            if self._text[self.end] == "-" and not is_first and self._text[self.end + 1 : self.end + 2] != "]":
                raise invalid("invalid character range")
            first = self._element()
            if not self._is_range():
                if isinstance(first, CharacterClass):
                    self.classes.append(first)
                else:
                    self.ranges.append((ord(first), ord(first)))
                continue
            self.end += 1
            last = self._element()
            if isinstance(first, CharacterClass) or isinstance(last, CharacterClass) or first > last:
                raise invalid("invalid character range")
            self.ranges.append((ord(first), ord(last)))

    def _is_range(self) -> bool:
        return self._text[self.end : self.end + 1] == "-" and self._text[self.end + 1 : self.end + 2] != "]"

    def _element(self) -> str | CharacterClass:
        if self.end >= len(self._text):
            raise invalid("brackets [] not balanced")
        character = self._text[self.end]
        if character == "\\" and self._takes_escapes:
            escape, self.end = escape_at(self._text, self.end, 0)
            if isinstance(escape, str | CharacterClass):
                return escape
            raise invalid("invalid escape \\ sequence")
        for sign, close in (("[:", ":]"), ("[.", ".]"), ("[=", "=]")):
            if self._accept(sign):
                return self._named(sign, close)
        self.end += 1
        return character

    def _named(self, sign: str, close: str) -> str | CharacterClass:
        begin = self.end
        self.end = self._text.find(close, begin)
        if self.end < 0:
            raise invalid("brackets [] not balanced")
        name = self._text[begin : self.end]
        self.end += len(close)
        if sign == "[:":
            if name not in CLASSES:
                raise invalid("invalid character class")
            return CharacterClass(name)
        if len(name) == 1:
            return name
        if name.isalnum() and name.isascii():
            raise unsupported(f'the collating element "{name}" is not supported', "Write the character itself.")
        raise invalid("invalid collating element")

    def classes_for(self, *, ignores_case: bool) -> Iterable[CharacterClass]:
        """Return the classes; if case does not matter, the class of all letters instead of `upper` and `lower`."""
        for part in self.classes:
            yield CharacterClass("alpha") if ignores_case and part.name in {"upper", "lower"} else part


def with_boundaries(node: Node) -> Node:
    r"""Return a tree with `\b` instead of `\m` and `\M`.

    Raises:
        SqlError: the text decides whether words begin or end there (0A000).
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
                "\\m and \\M are not supported between two parts that may each match characters of words or others",
                r"Write \w after \m, and \w before \M; or use \y.",
            )
    parts[index] = Constraint.BOUNDARY


def _has_only_words(node: Node, *, is_reversed: bool) -> bool:
    """Return whether every match begins (ends, if reversed) with a word character."""
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
    """Return a part restricted to a word character at its beginning or end; None if no simple form exists."""
    match node:
        case CharacterSet():
            return replace(node, is_of_words=True)
        case Repetition(body=CharacterSet() as body, least=least, most=most) if least:
            rest = replace(node, least=least - 1, most=None if most is None else most - 1)
            narrowed = replace(body, is_of_words=True)
            return Concatenation((rest, narrowed) if is_reversed else (narrowed, rest))
    return None


_DEEPEST = 200
_MOST_REPEATED = 255
_DIGITS = "0123456789"
_AHEAD = ("=", "!", "<=", "<!")

LONGEST_EXPRESSION = 100_000
"""Maximum number of characters. RE2 rejects most longer expressions, but its check may take minutes."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an expression.

    Attributes:
        ignores_case: whether upper and lower case are equal.
        dot_stops: whether `.` and `[^…]` match no newline.
        by_lines: whether `^` and `$` match at newlines.
        is_expanded: whether white space and comments are ignored.
        is_literal: whether the expression is a plain text.
        is_extended: whether the syntax is POSIX's, in which a backslash before a letter means the letter.
    """

    ignores_case: bool = False
    dot_stops: bool = False
    by_lines: bool = False
    is_expanded: bool = False
    is_literal: bool = False
    is_extended: bool = False

    def having(self, character: str) -> Options | None:
        """Return the options changed by one letter; None if the letter is not an option.

        Raises:
            SqlError: the option is not supported (0A000).
        """
        if character == "b":
            raise unsupported("basic regular expressions are not supported", "Write it as an advanced one.")
        changes = {
            "c": {"ignores_case": False},
            "e": {"is_extended": True, "is_literal": False},
            "i": {"ignores_case": True},
            "m": {"dot_stops": True, "by_lines": True},
            "n": {"dot_stops": True, "by_lines": True},
            "p": {"dot_stops": True, "by_lines": False},
            "q": {"is_literal": True, "is_extended": False},
            "s": {"dot_stops": False, "by_lines": False},
            "t": {"is_expanded": False},
            "w": {"dot_stops": False, "by_lines": True},
            "x": {"is_expanded": True},
        }
        return replace(self, **changes[character]) if character in changes else None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed regular expression.

    Attributes:
        root: root of the tree.
        groups: number of capturing groups.
    """

    root: Node
    groups: int


def parse(expression: str, options: Options) -> Parsed:
    """Parse an expression.

    Raises:
        SqlError: 2201B, the expression is invalid or too long; 0A000, matching in linear time is not possible.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise invalid("regular expression is too complex")
    if not options.is_literal and expression.startswith("***"):
        director, expression = expression[3:4], expression[4:]
        if director not in {"=", ":"}:
            raise invalid("quantifier operand invalid")
        options = replace(options, is_literal=director == "=", is_extended=False)
    if not options.is_literal and not options.is_extended and expression.startswith("(?"):
        options, expression = _embedded(options, expression)
    if options.is_literal:
        return Parsed(
            Concatenation(tuple(CharacterSet.of(part, ignores_case=options.ignores_case) for part in expression)), 0
        )
    reader = _Reader(expression, options)
    root = reader.alternation(0)
    if not reader.is_at_end:
        raise invalid("parentheses () not balanced")
    return Parsed(with_boundaries(root), reader.groups)


def _embedded(options: Options, expression: str) -> tuple[Options, str]:
    """Return the options written at the begin of an expression, and the rest of the expression."""
    end = 2
    while expression[end : end + 1].isalpha() and expression[end].isascii():
        end += 1
    if end == 2:
        return options, expression
    if expression[end : end + 1] != ")":
        raise invalid("invalid embedded option")
    for character in expression[2:end]:
        changed = options.having(character)
        if changed is None:
            raise invalid("invalid embedded option")
        options = changed
    return options, expression[end + 1 :]


class _Reader:
    def __init__(self, expression: str, options: Options) -> None:
        self._text = expression
        self._options = options
        self._at = 0
        self.groups = 0
        self._closed: set[int] = set()

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def _skip(self) -> None:
        """Skip comments and, in an expanded expression, white space."""
        while not self.is_at_end:
            character = self._text[self._at]
            if self._options.is_expanded and character.isspace():
                self._at += 1
            elif self._options.is_expanded and character == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text.startswith("(?#", self._at) and not self._options.is_extended:
                end = self._text.find(")", self._at)
                self._at = len(self._text) if end < 0 else end + 1
            else:
                return

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def alternation(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise invalid("regular expression is too complex")
        branches = [self._branch(depth)]
        while self._accept("|"):
            branches.append(self._branch(depth))
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _branch(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            self._skip()
            if self.is_at_end or self._text[self._at] == "|":
                break
            if self._text[self._at] == ")" and not (self._options.is_extended and not depth):
                break
            atom = self._atom(depth)
            parts.append(atom if isinstance(atom, Constraint) else self._repeated(atom))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self, depth: int) -> Node:  # noqa: PLR0911 - one for each kind
        options = self._options
        character = self._text[self._at]
        if character in "*+?" or (character == "{" and self._begins_bound()):
            raise invalid("quantifier operand invalid")
        if character == "(":
            return self._parenthesized(depth)
        if character == "[":
            return self._bracket()
        if character == "\\":
            return self._escaped()
        self._at += 1
        if character == "^":
            return Constraint.LINE_START if options.by_lines else Constraint.START
        if character == "$":
            return Constraint.LINE_END if options.by_lines else Constraint.END
        if character == ".":
            return CharacterSet(is_negated=True, stops=options.dot_stops)
        return CharacterSet.of(character, ignores_case=options.ignores_case)

    def _parenthesized(self, depth: int) -> Node:
        self._at += 1
        index = 0
        if not self._options.is_extended and self._accept("?"):
            if any(self._text.startswith(sign, self._at) for sign in _AHEAD):
                raise unsupported(
                    "look-around constraints in regular expressions are not supported",
                    "Match the surrounding text in a group of its own, or write two conditions.",
                )
            if not self._accept(":"):
                raise invalid("quantifier operand invalid")
        else:
            self.groups += 1
            index = self.groups
        body = self.alternation(depth + 1)
        if not self._accept(")"):
            raise invalid("parentheses () not balanced")
        self._closed.add(index)
        return Group(index, body) if index else Concatenation((body,))

    def _bracket(self) -> Node:
        for word, edge in (("[[:<:]]", Constraint.WORD_START), ("[[:>:]]", Constraint.WORD_END)):
            if self._accept(word):
                return edge
        bracket = Bracket(self._text, self._at, takes_escapes=not self._options.is_extended)
        bracket.read()
        self._at = bracket.end
        return CharacterSet(
            tuple(bracket.ranges),
            tuple(bracket.classes_for(ignores_case=self._options.ignores_case)),
            bracket.is_negated,
            bracket.is_negated and self._options.dot_stops,
            self._options.ignores_case,
        )

    def _escaped(self) -> Node:
        if self._options.is_extended:
            if self._at + 1 >= len(self._text):
                raise invalid("invalid escape \\ sequence")
            self._at += 2
            return CharacterSet.of(self._text[self._at - 1], ignores_case=self._options.ignores_case)
        escape, self._at = escape_at(self._text, self._at, self.groups)
        if isinstance(escape, CharacterClass):
            return CharacterSet(classes=(escape,))
        if isinstance(escape, Constraint):
            return escape
        if isinstance(escape, Escape):
            if escape.reference not in self._closed:
                raise invalid("invalid backreference number")
            raise unsupported(
                "back-references in regular expressions are not supported",
                "Select the two parts with regexp_substr, and compare them with =.",
            )
        return CharacterSet.of(escape, ignores_case=self._options.ignores_case)

    def _begins_bound(self) -> bool:
        at = self._at + 1
        if self._options.is_expanded:
            while at < len(self._text) and self._text[at].isspace():
                at += 1
        return at < len(self._text) and self._text[at] in _DIGITS

    def _repeated(self, atom: Node) -> Node:
        self._skip()
        if self.is_at_end:
            return atom
        least, most, is_given = 0, None, False
        if self._accept("*"):
            pass
        elif self._accept("+"):
            least = 1
        elif self._accept("?"):
            most = 1
        elif self._text[self._at] == "{" and self._begins_bound():
            least, most, is_given = self._bound()
        else:
            return atom
        is_greedy = self._options.is_extended or not self._accept("?")
        return Repetition(atom, least, most, None if is_given else is_greedy)

    def _bound(self) -> tuple[int, int | None, bool]:
        """Read the numbers of iterations after `{`: minimum, maximum, and whether there is only one number."""
        end = self._text.find("}", self._at)
        if end < 0:
            raise invalid("braces {} not balanced" if _is_bound(self._text[self._at + 1 :]) else _COUNTS)
        written = self._text[self._at + 1 : end]
        if self._options.is_expanded:
            written = "".join(written.split())
        if not _is_bound(written):
            raise invalid(_COUNTS)
        self._at = end + 1
        least, comma, most = written.partition(",")
        numbers = [int(number[:6]) for number in (least, most) if number]
        if any(number > _MOST_REPEATED for number in numbers) or numbers != sorted(numbers):
            raise invalid(_COUNTS)
        if not comma:
            return numbers[0], numbers[0], True
        return numbers[0], numbers[1] if most else None, False


_COUNTS = "invalid repetition count(s)"


def _is_bound(written: str) -> bool:
    least, _, most = written.partition(",")
    return all(digit in _DIGITS for digit in least + most) and bool(least)


def options_of(flags: str) -> Options:
    """Return the options of a function's flags; `g` is not an option.

    Raises:
        SqlError: a flag is unknown (22023).
    """
    options = Options()
    for flag in flags:
        changed = options if flag == "g" else options.having(flag)
        if changed is None:
            raise SqlError("22023", f'invalid regular expression option: "{flag}"')
        options = changed
    return options
