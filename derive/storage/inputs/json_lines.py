"""JSON Lines: one document a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from derive.storage.inputs.line import Line

_BOM = b"\xef\xbb\xbf"


def json_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Documents of a JSON Lines stream; blank lines and a byte order mark are skipped."""
    iterator = iter(lines)
    first = next(iterator, b"").removeprefix(_BOM)
    if first and not first.isspace():
        yield 1, first
    for number, line in enumerate(iterator, start=2):
        if not line.isspace():
            yield number, line
