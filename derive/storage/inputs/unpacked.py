"""Inputs that are packed with gzip or zstd are read as what is in them.

The content tells, and not the name: no JSON or CSV in UTF-8 begins as these do, and so standard input works as well.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from derive.errors import DocumentError, UsageError
from derive.storage.inputs.line import NOTHING_INGESTED

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
"""What the end of a file's name promises."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def unpacked(stream: io.BufferedReader, name: str) -> BinaryIO:
    """The content of a stream, unpacked if it is packed.

    Args:
        stream: from its beginning; it stays its opener's to close.
        name: of the file, for messages and for what its suffix promises.

    Raises:
        UsageError: the suffix promises what the content is not, or the text is UTF-16.
        DocumentError: while it is read: the packed data is damaged, or ends too early.
    """
    head = stream.peek(4)[:4]
    codec = next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)
    promised = next((codec for suffix, codec in SUFFIXES.items() if name.endswith(suffix)), None)
    if promised and codec is None:
        raise UsageError(f"{name} is not {promised}, though its name says so", hint="rename it to what it is")
    text = io.BufferedReader(_Unpacked(stream, codec, name), 1 << 17) if codec else stream
    if text.peek(2)[:2] in _UTF16:
        raise UsageError(f"{name} is UTF-16", hint="JSON and CSV are UTF-8: iconv -f utf-16 -t utf-8")
    return text


class _Unpacked(io.RawIOBase):
    """Unpacks as it is read, and counts what it has given."""

    def __init__(self, stream: BinaryIO, codec: str, name: str) -> None:
        import pyarrow as pa

        self._source = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec)
        self._codec = codec
        self._name = name
        self._lines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            chunk: bytes = self._source.read(len(buffer))
        except OSError as exc:
            is_cut = "Truncated" in str(exc)
            what = f"ends in the midst of its {self._codec} data" if is_cut else f"is damaged {self._codec} data: {exc}"
            raise DocumentError(
                f"{self._name} {what}; {self._lines:,} whole lines were read up to there", hint=NOTHING_INGESTED
            ) from exc
        self._lines += chunk.count(b"\n")
        buffer[: len(chunk)] = chunk
        return len(chunk)
