"""The external sort: whatever the memory, rows come out in order, each once, and nothing is left on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from derive.errors import DiskFullError
from derive.storage.segments.sorter import Sorter, Spill

ROWS = pa.schema([("time", pa.int64()), ("key", pa.binary()), ("text", pa.string())])
# No two rows are equal, which the number in their text sees to.
ORDER = ("time", "key", "text")
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=2)), max_size=8), max_size=60)


class Counted(Spill):
    """Counts the files it opens."""

    opened = 0

    @override
    def open(self) -> IO[bytes]:
        self.opened += 1
        return super().open()


def numbered(batches: list[list[tuple[int, bytes]]]) -> list[pa.RecordBatch]:
    number = 0
    found = []
    for rows in batches:
        texts = [f"{number + place:05}" for place in range(len(rows))]
        number += len(rows)
        columns = [[time for time, _ in rows], [key for _, key in rows], texts]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=ROWS))
    return found


def plain(batches: list[pa.RecordBatch]) -> list[tuple[int, bytes, str]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@given(BATCHES, st.sampled_from([0, 400, 1 << 20]))
def test_sorter_returns_rows_in_order(batches: list[list[tuple[int, bytes]]], memory: int) -> None:
    rows = numbered(batches)
    with tempfile.TemporaryDirectory() as folder, Counted(Path(folder), memory) as spill:
        sorter = Sorter(ROWS, ORDER, spill)
        for batch in rows:
            sorter.add(batch)
        found = plain(list(sorter.take()))

        assert found == sorted(plain(rows))
        assert (spill.opened > 0) == (memory == 0 and sum(map(bool, batches)) > 1) or memory == 400
        assert os.listdir(folder) == []
        assert list(sorter.take()) == []


@given(BATCHES, st.sampled_from([0, 400, 1 << 20]), st.lists(st.integers(0, 4)))
def test_sorter_returns_rows_up_to_a_bound(
    batches: list[list[tuple[int, bytes]]], memory: int, untils: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        sorter = Sorter(ROWS, ORDER, spill)
        waiting: list[tuple[int, bytes, str]] = []
        for batch, until in zip(numbered(batches), [*untils, *[0] * len(batches)], strict=False):
            sorter.add(batch)
            waiting = sorted(waiting + plain([batch]))
            assert plain(list(sorter.take((until,)))) == [row for row in waiting if row[0] < until]
            waiting = [row for row in waiting if row[0] >= until]

        assert plain(list(sorter.take())) == waiting


def test_many_runs_are_merged_into_fewer_files(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Counted(tmp_path, 0) as spill:
        sorter = Sorter(ROWS, ORDER, spill)
        rows = numbered([[(number * 7919 % 1200, b"")] for number in range(1200)])
        for batch in rows:
            sorter.add(batch)
        found = sorter.take()
        next(found)
        # A run is one row here; 32 of them are merged into one, and so are 32 of those.
        assert len(os.listdir("/proc/self/fd")) - before < 100
        assert [row[0] for row in plain(list(found))] == list(range(1, 1200))
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported() -> None:
    class Full(Spill):
        """A device on which nothing has space."""

        @override
        def open(self) -> IO[bytes]:
            return self._files.enter_context(open("/dev/full", "w+b", buffering=0))

    with Full(Path("/dev"), 0) as spill:
        sorter = Sorter(ROWS, ORDER, spill)
        sorter.add(numbered([[(1, b"")]])[0])
        with pytest.raises(DiskFullError) as caught:
            sorter.add(numbered([[(2, b"")]])[0])
    assert caught.value.message == "no space left on the device while writing /dev"
