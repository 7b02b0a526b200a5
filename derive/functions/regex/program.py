r"""Programs of RE2 for the parts of a regular expression, over texts of bytes.

The bytes of an ASCII text are its own. In other texts, a byte stands for all characters that the expression does not
distinguish: positions are those of the text, `\b` knows letters beyond ASCII, and programs are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import re2

from derive.functions.regex.characters import CharacterSet, invalid, is_word
from derive.functions.regex.tree import Alternation, Concatenation, Constraint, Group, Node, Repetition, parts_of

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
        """Return the program of the earliest and short match."""
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
        """Return the properties by which the expression distinguishes a character from others."""
        known = self._signatures.get(letter)
        if known is None:
            word = self._has_boundaries and is_word(letter)
            known = (letter == "\n", word, *(letter in part for part in self._sets))
            self._signatures[letter] = known
        return known

    def of_signatures(self, signatures: Iterable[Signature]) -> tuple[Mapping[Signature, int], Programs]:
        """Return a byte for each signature, and programs for texts of these.

        Raises:
            SqlError: 2201B, there are too many.
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
