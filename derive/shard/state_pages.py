"""Pages: the changes of a SQLite database as bytes, which can be applied to a copy of the database elsewhere.

A *part* is a set of pages with their numbers, compressed, and the size of the database. The parts of a write-ahead log
hold the last committed version of each page of the log; the parts of a database file hold all its pages. To apply a
part is to write each page at its place, so no SQL runs. The result equals the result of SQLite's own checkpoint, byte
for byte.

A log is read as SQLite reads it after a crash: up to the last commit whose frames have the salts of the log's header
and valid checksums. Frames after it are remains of a rollback, or of an earlier use of the file.

The checksum of a frame is a linear function of its words and of the checksum before it, modulo 2**32. So the checksums
of many frames are computed at once, as products with a vector of weights.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from derive.errors import StorageError

Words: TypeAlias = npt.NDArray[np.uint32]
"""Unsigned integers of 32 bits."""

PART_BYTES = 32 << 20
"""Approximate size of the pages of one part, bytes; it limits the memory for a part."""

_TAG = b"FLP1"
_HEAD = struct.Struct("<4sIII")  # tag, bytes of a page, pages of the database, pages of the part
_LOG_HEAD, _FRAME_HEAD = 32, 24
_MAGIC = 0x377F0682
_BLOCK = 1 << 10
"""Number of frames whose checksums are computed at once."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of a database, in a file.

    Attributes:
        page_bytes: size of a page, bytes.
        count: number of pages of the database.
        numbers: numbers of the pages, from 1, ascending.
        rows: the content of each page.
    """

    page_bytes: int
    count: int
    numbers: Words
    rows: Any

    def parts(self, most_bytes: int = PART_BYTES) -> Iterator[bytes]:
        """Yield the pages as parts, at least one.

        Args:
            most_bytes: approximate size of the pages of a part, bytes.
        """
        step = max(1, most_bytes // self.page_bytes)
        for begin in range(0, max(1, len(self.numbers)), step):
            numbers = self.numbers[begin : begin + step]
            pages = self.rows[begin : begin + len(numbers)].tobytes()
            if len(pages) != len(numbers) * self.page_bytes:
                raise StorageError(
                    "a state database was truncated during a read",
                    hint="run the command again; if the error returns, restore a backup: flowctl restore",
                )
            body = numbers.astype("<u4").tobytes() + pages
            head = _HEAD.pack(_TAG, self.page_bytes, self.count, len(numbers))
            yield head + _codec().compress(body, asbytes=True)


@cache
def _codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=1)


class _Rows:
    """Rows of an array in another order; a slice copies its rows."""

    def __init__(self, rows: Any, order: npt.NDArray[np.intp]) -> None:
        self._rows, self._order = rows, order

    def __getitem__(self, part: slice) -> Any:
        return self._rows[self._order[part]]


def pages_of_log(log: Path) -> Pages | None:
    """Return the last committed version of each page of a write-ahead log; None if it has no commit.

    Raises:
        StorageError: the file is no write-ahead log.
    """
    if not log.exists() or log.stat().st_size < _LOG_HEAD:
        return None
    content = np.memmap(log, dtype=np.uint8, mode="r")
    magic, _, page_bytes, _, *salts, first, second = struct.unpack(">8I", content[:_LOG_HEAD].tobytes())
    if magic & ~1 != _MAGIC or page_bytes < 512 or page_bytes % 8:
        raise StorageError(f"{log} is no write-ahead log of SQLite")
    width = _FRAME_HEAD + page_bytes
    frames = content[_LOG_HEAD : _LOG_HEAD + (len(content) - _LOG_HEAD) // width * width].reshape(-1, width)
    heads = np.ascontiguousarray(frames[:, :_FRAME_HEAD]).view(">u4").astype(np.uint32)
    is_salted = (heads[:, 2] == salts[0]) & (heads[:, 3] == salts[1]) & (heads[:, 0] > 0)
    salted = len(heads) if is_salted.all() else int(np.argmin(is_salted))
    before = np.vstack([np.array([[first, second]], dtype=np.uint32), heads[: max(0, salted - 1), 4:6]])[:salted]
    valid = _valid_frames(frames[:salted], heads[:salted, 4:6], before, ">u4" if magic & 1 else "<u4")
    commits = np.flatnonzero(heads[:valid, 1])
    if not len(commits):
        return None
    last = int(commits[-1])
    count = int(heads[last, 1])
    numbers, behind = np.unique(heads[last::-1, 0], return_index=True)
    is_kept = numbers <= count
    return Pages(page_bytes, count, numbers[is_kept], _Rows(frames[:, _FRAME_HEAD:], (last - behind)[is_kept]))


def _valid_frames(frames: npt.NDArray[np.uint8], stored: Words, before: Words, order: str) -> int:
    """Return the number of frames before the first frame with another checksum than the stored one.

    Args:
        frames: the frames.
        stored: the stored checksum of each frame.
        before: the checksum before each frame.
        order: type of the words that are summed, in the byte order of the log.
    """
    if not len(frames):
        return 0
    weights, powers = _weights((frames.shape[1] - _FRAME_HEAD + 8) // 4)
    words = frames.view(order)
    for begin in range(0, len(frames), _BLOCK):
        end = begin + _BLOCK
        block = np.concatenate([words[begin:end, :2], words[begin:end, _FRAME_HEAD // 4 :]], axis=1)
        sums = block.astype(np.uint32, copy=False) @ weights + before[begin:end] @ powers
        is_valid = (sums == stored[begin:end]).all(axis=1)
        if not is_valid.all():
            return begin + int(np.argmin(is_valid))
    return len(frames)


@cache
def _weights(words: int) -> tuple[Words, Words]:
    """Return the weights of words in a checksum of two sums, and the weights of the two sums before the words.

    For each pair of words `x, y`, the checksum `a, b` becomes `a + x + b, b + y + (a + x + b)`.
    """
    mask = 0xFFFFFFFF
    weights = np.zeros((words, 2), dtype=np.uint32)
    # The contribution of a pair (x, y) right after it is x * (1, 1) + y * (0, 1); each later pair multiplies it.
    of_first, of_second = (1, 1), (0, 1)
    for pair in range(words - 2, -1, -2):
        weights[pair], weights[pair + 1] = of_first, of_second
        of_first, of_second = (((a + b) & mask, (a + 2 * b) & mask) for a, b in (of_first, of_second))
    powers = [(1, 0), (0, 1)]
    for _ in range(words // 2):
        powers = [((a + b) & mask, (a + 2 * b) & mask) for a, b in powers]
    return weights, np.array(powers, dtype=np.uint32)


class _FileRows:
    """Pages of a database file, which are read when they are used."""

    def __init__(self, database: Path, page_bytes: int) -> None:
        self._database, self._page_bytes = database, page_bytes

    def __getitem__(self, part: slice) -> Any:
        offset, count = part.start * self._page_bytes, (part.stop - part.start) * self._page_bytes
        return np.fromfile(self._database, dtype=np.uint8, count=count, offset=offset)


def pages_of_database(database: Path) -> Pages:
    """Return all pages of a database file, without its log.

    Raises:
        StorageError: the file is no database.
    """
    with database.open("rb") as file:
        head = file.read(100)
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    size = database.stat().st_size
    if not head.startswith(b"SQLite format 3\0") or page_bytes < 512 or size % page_bytes:
        raise StorageError(f"{database} is no database of SQLite")
    count = size // page_bytes
    return Pages(page_bytes, count, np.arange(1, count + 1, dtype=np.uint32), _FileRows(database, page_bytes))


def apply_parts(database: Path, parts: Iterable[bytes]) -> None:
    """Write the pages of parts into a database file, in order; a missing file is created.

    Raises:
        StorageError: a part is damaged.
    """
    # With a buffer, a write that the system cuts short, as on a full disk, is continued or fails.
    with database.open("r+b" if database.exists() else "x+b") as file:
        for part in parts:
            page_bytes, count, numbers, pages = _decoded(part)
            for begin, end in _runs(numbers):
                file.seek((int(numbers[begin]) - 1) * page_bytes)
                file.write(pages[begin * page_bytes : end * page_bytes])
            file.truncate(count * page_bytes)


def _decoded(part: bytes) -> tuple[int, int, Words, memoryview]:
    """Return the bytes of a page, the pages of the database, the numbers of pages, and the pages."""
    try:
        tag, page_bytes, count, length = _HEAD.unpack_from(part)
        body = _codec().decompress(part[_HEAD.size :], length * (4 + page_bytes), asbytes=True)
    except (struct.error, OSError, ValueError) as exc:
        raise StorageError(f"a part of a state database is damaged: {exc}") from exc
    if tag != _TAG:
        raise StorageError("a part of a state database is damaged: it has another format")
    return page_bytes, count, np.frombuffer(body, dtype="<u4", count=length), memoryview(body)[4 * length :]


def _runs(numbers: Words) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each run of consecutive numbers."""
    borders = np.flatnonzero(np.diff(numbers.astype(np.int64)) != 1) + 1
    edges = [0, *borders.tolist(), len(numbers)]
    yield from ((begin, end) for begin, end in pairwise(edges) if begin < end)
