"""JSON documents in a stream: arrays of documents, and documents with any whitespace within and between them.

A scan for strings and brackets finds where each document ends; the documents are parsed elsewhere. Memory holds one
document and the next part of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from derive.errors import DocumentError
from derive.functions.types.jsonb import FEW_VALUES
from derive.storage.inputs.line import BOM, MOST_DOCUMENT_BYTES, Line, too_large, too_many_values

_CHUNK = 1 << 18
_MOST_COLUMNS = 4_096
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
"""A whole string, a bracket, or the begin of a string whose end is not in the buffer."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_BARE = re.compile(rb"[^ \t\r\n,{}\[\]]+")
"""Text outside of documents: a number, a string without spaces, or no JSON."""


def is_one_document(line: bytes) -> bool:
    """Return true if the brackets of a line are balanced, as in JSON Lines, and the line is no array."""
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
    return not depth and not line.startswith(b"[")


def json_documents(stream: BinaryIO, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a stream with the numbers of the lines in which they begin.

    The members of an array that is no member of another value are documents. After an error in the structure around
    documents, or a document of more than `most_bytes`, the stream ends with the error.
    """
    return iter(_Scanner(stream, most_bytes))


class _Scanner:
    """Splits a stream into the texts of documents.

    Args:
        stream: the stream.
        most_bytes: size limit of a document.
    """

    def __init__(self, stream: BinaryIO, most_bytes: int) -> None:
        self._stream, self._most_bytes = stream, most_bytes
        self._buffer = b""
        self._at = 0  # offset of the next character
        self._line, self._counted = 1, 0  # number of the line at an offset
        self._line_begin = 0  # offset of the begin of this line, below 0 if the buffer begins within the line
        self._is_ended = False

    def __iter__(self) -> Iterator[Line]:
        self._fill()
        if self._buffer.startswith(BOM):
            self._at = self._counted = self._line_begin = len(BOM)
        array: int | None = None  # number of the line in which the open array begins
        needs_comma = may_end = False
        while (sign := self._next()) is not None:
            number = self._number()
            if array is None and sign == b"[":
                array, needs_comma, may_end = number, False, True
                self._at += 1
            elif array is not None and sign == b"]" and (needs_comma or may_end):
                array = None
                self._at += 1
            elif needs_comma and array is not None and sign == b",":
                needs_comma = may_end = False
                self._at += 1
            elif sign in b",]}" or (needs_comma and array is not None):
                expected = "',' or ']'" if needs_comma and array is not None else "a document"
                column = self._at - self._line_begin + 1
                yield number, DocumentError(f"expected {expected}, but found '{chr(sign[0])}' in column {column}")
                return
            else:
                end = self._end()
                if end - self._at > self._most_bytes:
                    yield number, too_large(self._most_bytes)
                    return
                text = self._buffer[self._at : end]
                column = self._at - self._line_begin
                self._at, needs_comma = end, True
                if len(text) > FEW_VALUES and (error := too_many_values([text], self._most_bytes)):
                    yield number, error
                else:
                    # Spaces in place of the line before the document, so that errors of the parser have its columns.
                    yield number, b" " * column + text if column <= _MOST_COLUMNS else text
        if array is not None:
            yield self._number(), DocumentError(f"the array that begins in line {array} does not end")

    def _next(self) -> bytes | None:
        """Skip whitespace, and return the next character; None at the end of the stream."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if self._is_ended:
                return None
            self._fill()

    def _number(self) -> int:
        """Return the number of the line of the next character."""
        if breaks := self._buffer.count(b"\n", self._counted, self._at):
            self._line += breaks
            self._line_begin = self._buffer.rindex(b"\n", self._counted, self._at) + 1
        self._counted = self._at
        return self._line

    def _fill(self) -> None:
        """Read more of the stream, at least as much as the buffer keeps, so that long documents are scanned once."""
        self._number()
        kept = self._buffer[self._at :]
        self._line_begin -= self._at
        chunk = self._stream.read(max(_CHUNK, len(kept)))
        self._is_ended = not chunk
        self._buffer, self._at, self._counted = kept + chunk, 0, 0

    def _end(self) -> int:
        """Return the offset of the end of the document that begins at the next character.

        A document that does not end has the rest of the stream, or more than the size limit.
        """
        if self._buffer[self._at : self._at + 1] not in (b"{", b"["):
            return self._end_of_bare()
        depth, offset = 0, self._at
        while True:
            for match in _TOKEN.finditer(self._buffer, offset):
                token = match[0]
                if token in (b"{", b"["):
                    depth += 1
                elif token in (b"}", b"]"):
                    depth -= 1
                    if not depth:
                        return match.end()
                elif token == b'"':
                    offset = match.start()
                    break
                offset = match.end()
            else:
                offset = len(self._buffer)
            if self._is_ended or len(self._buffer) - self._at > self._most_bytes:
                return len(self._buffer)
            offset -= self._at
            self._fill()

    def _end_of_bare(self) -> int:
        while True:
            match = _BARE.match(self._buffer, self._at)
            assert match is not None
            if match.end() < len(self._buffer) or self._is_ended or match.end() - self._at > self._most_bytes:
                return match.end()
            self._fill()
