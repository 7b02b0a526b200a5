"""Inputs, segments and reads of them, for tests about time; there is no store behind them."""

from __future__ import annotations

from hypothesis import strategies as st

from derive.position import Position
from derive.protocol.specs import InputSpec
from derive.time.extent import Limits
from derive.time.positions import Segment, SourceRead, read_input

AT = Position("flow.yaml", 1)


def segment(clock_min: int, clock_max: int, documents: int = 1) -> Segment:
    return Segment("t/source", f"{clock_min}-{clock_max}.parquet", (), clock_min, clock_max, documents, 10 * documents)


def input_of(name: str, source: str = "t/source", index: int = 0, **settings: int | bool | None) -> InputSpec:
    return InputSpec(index, name, source, AT, **settings)  # type: ignore[arg-type]


@st.composite
def segments(draw: st.DrawFn, end: int = 2_000) -> tuple[Segment, ...]:
    drawn = []
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, end))
        drawn.append(segment(first, first + draw(st.integers(0, end)), draw(st.integers(1, 1_000))))
    return tuple(drawn)


@st.composite
def reads(draw: st.DrawFn, tick: int, begin: int, bound: int) -> list[SourceRead]:
    """What a task with one or two inputs reads for adjusted clocks in `[begin, bound)`."""
    taking_part = []
    for index in range(draw(st.integers(1, 2))):
        delay, feedback = draw(st.sampled_from([0, 1, 7, 250])), draw(st.booleans())
        spec = input_of(f"input{index}", index=index, read_delay=delay, feedback=feedback)
        taking_part.append(read_input(spec, tick, draw(segments()), begin, bound))
    return taking_part


limits = st.builds(
    Limits,
    documents=st.integers(1, 2_000),
    bytes=st.integers(1, 20_000),
    segments=st.one_of(st.just(8_192), st.integers(1, 6)),
    slice_documents=st.integers(1, 500),
    small_documents=st.integers(0, 50),
    small_bytes=st.integers(0, 500),
)
