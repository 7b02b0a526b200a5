"""JSON Lines input: one document per line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from derive.storage.inputs.line import MOST_DOCUMENT_BYTES, Line, too_large, too_many_values
from derive.value_count import FEW_VALUES

_BOM = b"\xef\xbb\xbf"


def json_lines(stream: BinaryIO, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a JSON Lines stream; blank lines and a byte order mark are skipped.

    A line of more than `most_bytes` is an error, and reading stops there. A line of too many values is an error too.
    """
    lines = iter(partial(stream.readline, most_bytes + 2), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > most_bytes and len(line.rstrip(b"\r\n")) > most_bytes:
            yield number, too_large(most_bytes, "the line")
            return
        text = line.removeprefix(_BOM) if number == 1 else line
        if text and not text.isspace():
            yield number, (too_many_values([text], most_bytes) if len(text) > FEW_VALUES else None) or text
