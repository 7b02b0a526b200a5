"""Words, texts and signs of SQL, and where they are: all that is needed to say a query in other words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<text>[eE]'(?:[^'\\]|''|\\.)*'|[nN]?'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<parameter>\$\d+)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<sign>::|!~~\*|!~~|~~\*|~~|!~\*|!~|~\*|[<>!=]=|<>|\|\||->>|->|\#>>|\#>|@>|<@|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Kind(Enum):
    """What a token is."""

    SPACE = "space"
    TEXT = "text"
    QUOTED = "quoted"
    PARAMETER = "parameter"
    NUMBER = "number"
    WORD = "word"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL.

    Attributes:
        kind: what it is.
        text: as it is written.
    """

    kind: Kind
    text: str

    @property
    def word(self) -> str:
        """What it names or says, in the case that SQL gives it; empty for texts and spaces."""
        if self.kind is Kind.QUOTED:
            return self.text[1:-1].replace('""', '"')
        return self.text.lower() if self.kind in (Kind.WORD, Kind.SIGN) else ""


def tokens_of(text: str) -> Iterator[Token]:
    """The tokens of a text, spaces and comments among them. An unfinished text or comment is signs and words."""
    for match in _TOKEN.finditer(text):
        kind = "text" if match.lastgroup == "tag" else match.lastgroup
        yield Token(Kind(kind), match.group())
