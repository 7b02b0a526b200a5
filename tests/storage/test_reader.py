"""Reading segments in order: a merge of readers equals a sort, whatever the layout of the files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import SegmentError, SegmentMissingError
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.writer import SegmentWriter, WriteSizes
from derive.time.positions import Segment, SourceRead

SPEC = CollectionSpec("s/events", ("/k",), (0,), True, True, (), Position("flow.yaml", 1, 1))

Row = tuple[int, int, bytes, int]
"""Clock, seq, key and diff; no two have the same clock, seq and key."""

ROWS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 2), st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([1, -1])),
    max_size=40,
    unique_by=lambda row: row[:3],
)


def write(root: Path, name: str, rows: Sequence[Row], sizes: WriteSizes) -> list[Segment]:
    """Segments of rows, which are written five at a time."""
    writer = SegmentWriter(root, SPEC, name, sizes)
    ordered = sorted(rows)
    for begin in range(0, len(ordered), 5):
        clocks, seqs, keys, diffs = zip(*ordered[begin : begin + 5], strict=True)
        texts = [f'{{"at":{clock},"seq":{seq}}}' for clock, seq in zip(clocks, seqs, strict=True)]
        writer.write(WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, ["[]"] * len(texts)))
    return writer.close()


def read(root: Path, reads: Sequence[SourceRead], most_rows: int = 10_000) -> list[list[tuple[int, int, int, bytes]]]:
    """Adjusted clock, transform, seq and key of each row, in the batches in which they come."""
    return [list(zip(*rows.lists(), strict=True)) for rows in read_sorted(root, reads, most_rows=most_rows)]


def test_read_rows_have_clock_transform_diff_and_text(tmp_path: Path) -> None:
    segments = write(tmp_path, "one", [(3, 0, b"a", 1), (5, 0, b"b", -1), (5, 1, b"a", 1)], WriteSizes())

    (rows,) = read_sorted(tmp_path, [SourceRead(2, 100, 0, 10, tuple(segments))])

    assert rows.batch.to_pylist() == [
        {"adjusted": 103, "transform": 2, "seq": 0, "key": b"a", "diff": 1, "doc": '{"at":3,"seq":0}'},
        {"adjusted": 105, "transform": 2, "seq": 0, "key": b"b", "diff": -1, "doc": '{"at":5,"seq":0}'},
        {"adjusted": 105, "transform": 2, "seq": 1, "key": b"a", "diff": 1, "doc": '{"at":5,"seq":1}'},
    ]
    assert rows.documents() == [{"at": 3, "seq": 0}, {"at": 5, "seq": 0}, {"at": 5, "seq": 1}]


def test_transforms_with_delays_are_merged_by_adjusted_clock(tmp_path: Path) -> None:
    segments = tuple(write(tmp_path, "one", [(3, 0, b"a", 1), (5, 0, b"a", 1)], WriteSizes()))
    reads = [SourceRead(0, 2, 0, 10, segments), SourceRead(1, 0, 0, 10, segments)]

    rows = [row for batch in read(tmp_path, reads) for row in batch]

    assert rows == [(3, 1, 0, b"a"), (5, 0, 0, b"a"), (5, 1, 0, b"a"), (7, 0, 0, b"a")]


def test_reads_are_limited_to_an_interval_and_a_batch_size(tmp_path: Path) -> None:
    segments = tuple(write(tmp_path, "one", [(clock, 0, b"a", 1) for clock in range(9)], WriteSizes(row_group=2)))

    batches = read(tmp_path, [SourceRead(0, 0, 2, 7, segments)], most_rows=2)

    assert [clock for rows in batches for clock, _, _, _ in rows] == [2, 3, 4, 5, 6]
    assert max(map(len, batches)) <= 2


def test_missing_or_replaced_file_is_reported(tmp_path: Path) -> None:
    (one,), (other,) = (
        write(tmp_path, name, [(1, 0, b"a", 1)] * count, WriteSizes()) for name, count in [("x", 1), ("y", 2)]
    )
    (tmp_path / one.path).write_bytes((tmp_path / other.path).read_bytes())
    with pytest.raises(SegmentError, match="it does not hold what was written: 1 document"):
        read(tmp_path, [SourceRead(0, 0, 0, 10, (one,))])
    (tmp_path / one.path).unlink()
    with pytest.raises(
        SegmentMissingError, match="a file of collection 's/events' is missing: collections/s/events@/x-0"
    ):
        read(tmp_path, [SourceRead(0, 0, 0, 10, (one,))])


@given(
    st.lists(ROWS, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(5, 22)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 7),
)
def test_a_merge_of_readers_equals_a_sort(
    files: list[list[Row]], ranges: list[tuple[int, int, int]], row_group: int, most_rows: int
) -> None:
    sizes = WriteSizes(row_group=row_group, file_rows=11)
    expected = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        segments: list[Segment] = []
        for number, rows in enumerate(files):
            numbered = [(clock, seq, key + bytes([number]), diff) for clock, seq, key, diff in rows]
            segments += write(root, f"file-{number}", numbered, sizes)
            expected += [
                (clock + offset, transform, seq, key, diff)
                for transform, (offset, begin, end) in enumerate(ranges)
                for clock, seq, key, diff in numbered
                if begin <= clock < end
            ]
        reads = [
            SourceRead(transform, offset, begin, end, tuple(segments))
            for transform, (offset, begin, end) in enumerate(ranges)
        ]
        parts = list(read_sorted(root, reads, most_rows=most_rows))
        stored = list(read_sorted(root, reads[:1], ReadRows.STORED_ORDER))

    assert [row for rows in parts for row in zip(*rows.lists(), rows.diffs.tolist(), strict=True)] == sorted(expected)
    assert all(0 < len(rows) <= most_rows for rows in parts)
    clocks = [(clock, seq, key) for rows in stored for clock, seq, key, _ in rows.tuples()]
    assert clocks == sorted((clock, seq, key) for clock, transform, seq, key, _ in expected if transform == 0)
