"""Decompress inputs that are compressed with gzip or zstd.

The content decides, and not the file name: no JSON or CSV in UTF-8 begins like these formats. Standard input therefore
works too.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from derive.errors import DocumentError, UsageError
from derive.storage.inputs.line import NOTHING_INGESTED

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
"""Codec that a file name's suffix promises."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def unpacked(stream: io.BufferedReader, name: str) -> BinaryIO:
    """Return the decompressed content of a stream.

    Args:
        stream: the stream at its beginning; the caller closes it.
        name: name of the file, for messages and for its suffix.

    Raises:
        UsageError: the content contradicts the suffix, or the text is UTF-16.
        DocumentError: during reading: the compressed data is damaged or truncated.
    """
    head = stream.peek(4)[:4]
    codec = next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)
    promised = next((codec for suffix, codec in SUFFIXES.items() if name.endswith(suffix)), None)
    if promised and codec is None:
        raise UsageError(f"{name} is not {promised}, but its name says so", hint="rename the file")
    text = io.BufferedReader(_Unpacked(stream, codec, name), 1 << 17) if codec else stream
    if text.peek(2)[:2] in _UTF16:
        raise UsageError(f"{name} is UTF-16", hint="JSON and CSV are UTF-8: iconv -f utf-16 -t utf-8")
    return text


class _Unpacked(io.RawIOBase):
    """Decompresses on read, and counts the lines."""

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
