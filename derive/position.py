"""Resources and positions in them: the URLs of a catalog's files, and the places that messages show.

The URL of a resource is an absolute path, or an http(s) address.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit


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

    def locate_line(self, line: int, column: int, length: int = 0) -> Position:
        """Return the author's position of a line and column of `text`, both from 1."""
        before = self.text.split("\n")[: line - 1]
        return self.locate(sum(len(text) + 1 for text in before) + column - 1, length)


def _content_start(source: str) -> int:
    """Return the index of the first character of a YAML scalar, after its block header or quote."""
    if source[:1] in ("|", ">"):
        return source.find("\n") + 1
    return 1 if source[:1] in ("'", '"') else 0


def resolve(base: str, reference: str) -> str:
    """Return the URL of a reference that a resource with the URL `base` contains."""
    if is_remote(reference) or is_remote(base):
        try:
            return urljoin(base, reference)
        except ValueError:  # no valid URL, which loading reports
            return reference
    path = unquote(reference[7:]) if reference.startswith("file://") else reference
    return os.path.normpath(Path(base).parent / path)


def show(url: str) -> str:
    """Return a URL as messages show it: a path below the working directory is relative."""
    if is_remote(url):
        return url
    relative = os.path.relpath(url)
    return url if relative.startswith("..") else relative


def is_remote(url: str) -> bool:
    """Return true if a URL is an http(s) address."""
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return url.startswith(("http:", "https:"))


def reason_of(exc: OSError) -> str:
    """Return a short reason for an error of loading a resource."""
    from urllib.error import URLError

    if isinstance(exc, URLError):
        return reason_of(exc.reason) if isinstance(exc.reason, OSError) else str(exc.reason)
    return exc.strerror or str(exc)


def too_large(limit: int) -> OSError:
    """Return the error of a resource that exceeds the size limit."""
    return OSError(f"it has more than {limit >> 20} MiB, the limit of a file that a catalog names")
