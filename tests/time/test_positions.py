"""Where the inputs of a task go on, and what they read from there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from time_specs import input_of, segment

from derive.protocol.specs import InputSpec
from derive.time import BEGINNING
from derive.time.positions import KeptHistory, Place, compacted, current_positions, lost, needs, offset_of, read_input

TICK = 10
delays = st.integers(0, 100)


def place_of(spec: InputSpec) -> Place:
    return Place(spec.source, offset_of(spec, TICK))


@pytest.mark.parametrize(
    ("delay", "feedback", "expected"), [(0, False, 0), (25, False, 25), (0, True, TICK), (25, True, 25 + TICK)]
)
def test_offset_of_an_input_is_its_delay_plus_its_feedback_tick(delay: int, feedback: bool, expected: int) -> None:
    assert offset_of(input_of("a", read_delay=delay, feedback=feedback), TICK) == expected


@given(delays, delays, st.booleans(), st.booleans(), st.integers(0, 1_000), st.integers(0, 1_000))
def test_changed_delay_moves_a_position_with_its_documents(
    before: int, after: int, fed_back_before: bool, fed_back_after: bool, position: int, clock: int
) -> None:
    old = input_of("a", read_delay=before, feedback=fed_back_before)
    new = input_of("a", read_delay=after, feedback=fed_back_after)
    current = current_positions([new], TICK, {"a": position}, {"a": place_of(old)})

    was_processed = clock + offset_of(old, TICK) < position
    assert (clock + offset_of(new, TICK) < current["a"]) == was_processed
    assert current_positions([old], TICK, current, {"a": place_of(new)}) == {"a": position}


def test_changed_source_and_raised_backfill_begin_again() -> None:
    known = {"a": 700, "b": 700, "c": 700}
    specs = [input_of("a"), input_of("b", source="t/other", index=1), input_of("c", index=2, backfill=1)]
    places = {name: Place("t/source", 0) for name in known}

    current = current_positions(specs, TICK, known, places)

    assert [current.get(spec.state_key) for spec in specs] == [700, None, None]
    assert current["c"] == 700  # of the backfill before, which is remembered


def test_position_of_an_older_folder_is_not_moved() -> None:
    assert current_positions([input_of("a", read_delay=5)], TICK, {"a": 700}, {}) == {"a": 700}


@given(delays, st.integers(0, 500), st.integers(0, 500), st.integers(0, 600))
def test_reads_lie_between_positions_and_bounds(delay: int, begin: int, length: int, clock: int) -> None:
    spec = input_of("a", read_delay=delay, not_before=100, not_after=400)
    end = begin + length

    read = read_input(spec, TICK, [segment(clock, clock)], begin, end)

    is_wanted = begin <= clock + delay < end and 100 <= clock < 400
    assert (read.clock_begin <= clock < read.clock_end) == is_wanted
    assert bool(read.segments) >= is_wanted


def test_input_needs_unprocessed_history() -> None:
    specs = [input_of("now"), input_of("later", index=1, read_delay=40), input_of("late", index=2, not_before=60)]

    assert needs(specs, TICK, {}) == {"now": 0, "later": 0, "late": 60}
    assert needs(specs, TICK, {"now": 90}) == {"now": 90, "later": 0, "late": 60}
    assert needs(specs, TICK, {"now": 90, "later": 90, "late": 90}) == {"now": 90, "later": 50, "late": 90}


def test_compacted_history_is_reported_for_new_inputs_and_refused_for_others() -> None:
    specs = [input_of("old"), input_of("new", index=1)]
    rights = {"old": KeptHistory(since=50, is_kept=True), "new": KeptHistory(since=50, is_kept=False)}

    assert compacted(specs, TICK, {"old": 40}, rights) == [(specs[1], 50)]
    assert lost("t/task", specs, TICK, {"old": 40}, rights, reset="R") is None
    for position in (BEGINNING, 40):  # an endpoint may have rows before the data folder has a commit
        error = lost("t/task", specs, TICK, {"old": 40, "new": position}, rights, reset="R")
        assert error is not None
        assert error.message.startswith("'new' of 't/task' still needs history of")
        assert (error.hint or "").endswith("or start over: R")
    assert lost("t/task", specs, TICK, {"old": 40, "new": 50}, rights, reset="R") is None
