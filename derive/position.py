"""Positions in files. Messages show the position of a cause."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text file.

    Attributes:
        file: path relative to the folder of the command, as a person would write it.
        line: line number, from 1.
        column: column number in characters, from 1.
        length: number of characters to underline; 0 if unknown.
        text: text of the line, if no file contains it; None otherwise.
    """

    file: str
    line: int = 1
    column: int = 1
    length: int = 0
    text: str | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Script:
    """A piece of code written in a catalog, inline or in a file of its own.

    Attributes:
        text: the code, as the connector runs it.
        source: the raw text: equal to `text` for a file, and for inline code the region of the YAML file with its
            indentation, quotes and block header.
        position: beginning of `source`.
    """

    text: str
    source: str
    position: Position

    def locate(self, offset: int, length: int = 0) -> Position:
        """Return the position of the character at `offset` of `text`.

        YAML folds and indents text but keeps the order of all characters that are not white space. The n-th such
        character of `text` is therefore the n-th of `source`.
        """
        before = sum(1 for character in self.text[:offset] if not character.isspace())
        line, column = self.position.line, self.position.column
        start = 0
        if self.source != self.text:
            start = _content_start(self.source)
        for index, character in enumerate(self.source):
            if index >= start and not character.isspace():
                if before == 0:
                    break
                before -= 1
            if character == "\n":
                line, column = line + 1, 1
            else:
                column += 1
        return Position(self.position.file, line, column, length)


def _content_start(source: str) -> int:
    """Return the index of the first character of a YAML scalar, after its block header or quote."""
    if source[:1] in ("|", ">"):
        return source.find("\n") + 1
    return 1 if source[:1] in ("'", '"') else 0
