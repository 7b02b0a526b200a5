"""What bounds the tasks of a cycle."""

from __future__ import annotations

import pytest
from time_specs import input_of

from derive.protocol.specs import InputSpec
from derive.time.cycle import earliest_cause, feeds_back_in_memory, frontier_of
from derive.time.frontier import END_OF_TIME

TICK = 10
OUTSIDE = input_of("outside", source="t/outside", read_delay=5)
FED_BACK = input_of("back", source="t/itself", index=1, feedback=True)
FIRST = input_of("first", source="t/outside", priority=1)


@pytest.mark.parametrize(
    ("inputs", "shards", "cycle", "expected"),
    [
        ([OUTSIDE, FED_BACK], 1, ["t/itself"], True),
        ([OUTSIDE, FED_BACK], 2, ["t/itself"], False),
        ([OUTSIDE, FED_BACK], 1, ["t/itself", "t/other"], False),
        ([FIRST, FED_BACK], 1, ["t/itself"], False),  # priorities take turns after each tick
        ([OUTSIDE], 1, ["t/itself"], False),
    ],
)
def test_one_shard_alone_on_its_cycle_feeds_back_in_memory(
    inputs: list[InputSpec], shards: int, cycle: list[str], expected: bool
) -> None:
    assert feeds_back_in_memory(inputs, shards, cycle) is expected


def test_a_cause_is_stored_or_still_to_come_from_outside() -> None:
    uppers = {"t/outside": 100, "t/itself": 20}
    assert earliest_cause([OUTSIDE, FED_BACK], TICK, uppers, stored=70) == 70
    assert earliest_cause([OUTSIDE, FED_BACK], TICK, uppers, stored=None) == 105
    assert earliest_cause([FED_BACK], TICK, uppers, stored=None) == END_OF_TIME


def test_a_frontier_is_the_upper_or_on_a_cycle_the_earliest_cause() -> None:
    assert frontier_of(OUTSIDE, TICK, upper=100, earliest=70, now=1_000) == 105
    assert frontier_of(OUTSIDE, TICK, upper=100, earliest=70, now=102) == 102
    assert frontier_of(FED_BACK, TICK, upper=20, earliest=70, now=1_000) == 80
    assert frontier_of(FED_BACK, TICK, upper=90, earliest=70, now=1_000) == 100
