"""Packed segments: a worker finds the segments that the driver has described, in the same order."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from derive.time.packed_segments import PackedSegments, packed_reads
from derive.time.positions import Segment, SourceRead

partitions = st.sampled_from([(), ("a",), ("b", 1), (None, True), ("ä\n",)])
checksums = st.sampled_from(["", "0f" * 32])
described = st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 40), partitions, checksums), max_size=6)


def segments_of(rows: list[tuple[int, int, tuple[object, ...], str]], times: int) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            "p/one", f"collections/p/one@/{place}-{number}.parquet", partition, begin, begin + span, number, 7, checksum
        )
        for place in range(times)
        for number, (begin, span, partition, checksum) in enumerate(rows)
    )


@given(described, st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 1 << 20))
def test_packed_read_has_the_segments_of_the_read(
    rows: list[tuple[int, int, tuple[object, ...], str]], begin: int, end: int, offset: int
) -> None:
    """Law: packing, sending and opening change no part of a read."""
    read = SourceRead(3, offset, begin // 2, 1 << 51, segments_of(rows, 400))
    (sent,) = pickle.loads(pickle.dumps(packed_reads([read])))

    assert isinstance(sent.segments, PackedSegments) == (len(read.segments) > 512)
    assert sent.within(begin, end) == read.within(begin, end)
    assert tuple(sent.segments) == read.segments
    assert len(sent.segments) == len(read.segments)


@given(st.lists(st.tuples(st.text("ab", max_size=4), st.text("0aF", max_size=2)), min_size=1, max_size=4))
def test_packed_segments_keep_their_texts(texts: list[tuple[str, str]]) -> None:
    """Law: it does not matter what paths have in common, and which checksums are digests."""
    segments = [Segment("p/one", path, (), 5, 7, 1, 1, checksum) for path, checksum in texts]
    assert list(pickle.loads(pickle.dumps(PackedSegments(segments)))) == segments


def test_packed_read_is_small_and_opens_only_its_part() -> None:
    read = SourceRead(0, 0, 0, 1 << 50, tuple(Segment("p/one", f"{n}.parquet", (), n, n, 1, 1) for n in range(5_000)))
    (sent,) = packed_reads([read])
    assert isinstance(sent.segments, PackedSegments)

    assert len(pickle.dumps(sent)) < len(pickle.dumps(read)) / 3
    assert len(list(sent.segments.between(2_000, 2_001))) == 512
    assert sent.segments[4_999] == read.segments[4_999]
    assert sent.segments[10:12] == read.segments[10:12]
