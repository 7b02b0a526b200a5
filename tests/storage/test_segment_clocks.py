"""What storage answers about the clocks of a range of time, beside what a look at all documents says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.segments.clocks import count_documents, first_clock
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.time.frontier import END_OF_TIME
from derive.time.source_read import Segment, SourceRead

SPEC = CollectionSpec("c/events", ("/id",), (0,), True, True, (), Position("flow.yaml", 1))


def write(folder: Path, name: str, clocks: list[int]) -> list[Segment]:
    writer = SegmentWriter(folder, SPEC, name)
    documents = [{"id": number} for number in range(len(clocks))]
    keys = [b"%06d" % number for number in range(len(clocks))]
    labels = compile_labels(SPEC)(documents)
    writer.write(WrittenRows.sorted_of(sorted(clocks), [0] * len(clocks), keys, documents, labels))
    return writer.close()


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), max_size=4),
    st.integers(0, 70),
    st.integers(0, 70) | st.just(END_OF_TIME),
)
def test_the_first_clock_and_the_count_are_those_of_all_documents(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], begin: int, end: int
) -> None:
    folder = tmp_path_factory.mktemp("clocks")
    segments = [segment for number, clocks in enumerate(files) for segment in write(folder, f"file-{number}", clocks)]
    read = SourceRead(0, 0, begin, end, tuple(segments)).within(begin, end)

    within = [clock for clocks in files for clock in clocks if begin <= clock < end]
    assert first_clock(folder, read) == min(within, default=None)
    assert count_documents(folder, read) == len(within)


def test_a_segment_that_lies_within_is_not_opened(tmp_path: Path) -> None:
    segment = Segment("c/events", "there/is/no/such/file.parquet", (), 10, 20, 7, 100)

    assert first_clock(tmp_path, SourceRead(0, 0, 10, 21, (segment,))) == 10
    assert count_documents(tmp_path, SourceRead(0, 0, 10, 21, (segment,))) == 7
