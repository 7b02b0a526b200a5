"""What bounds the tasks of a cycle."""

from __future__ import annotations

from collections.abc import Sequence

from time_specs import input_of

from derive.protocol.specs import InputSpec
from derive.time import END_OF_TIME
from derive.time.cycle import Horizon, Level, Step, by_priority, earliest_to_come, next_step

TICK = 10
OUTSIDE = input_of("outside", source="t/outside", read_delay=5)
FED_BACK = input_of("back", source="t/itself", index=1, feedback=True)
FIRST = input_of("first", source="t/outside", priority=1)


def test_feedback_of_a_cycle_follows_its_external_cause() -> None:
    uppers = {"t/outside": 100, "t/itself": 20}
    assert earliest_to_come([OUTSIDE, FED_BACK], TICK, uppers) == 105
    assert earliest_to_come([FED_BACK], TICK, uppers) == END_OF_TIME


def test_inputs_are_bounded_by_the_upper_or_on_a_cycle_the_earliest_cause() -> None:
    def horizon(upper: int, now: int = 1_000) -> Horizon:
        return Horizon({"t/outside": upper, "t/itself": upper}, earliest=70, now=now)

    assert Level([OUTSIDE], TICK).bound(horizon(105)) == 110
    assert Level([OUTSIDE], TICK).bound(horizon(104)) == 100  # the last boundary before 109
    assert Level([OUTSIDE], TICK).bound(horizon(104, now=99)) == 90
    assert Level([FED_BACK], TICK).bound(horizon(20)) == 80
    assert Level([FED_BACK], TICK).bound(horizon(90)) == 100
    assert Level([OUTSIDE, FED_BACK], TICK).bound(horizon(90)) == 90


def step(positions: dict[str, int], stored: dict[str, int]) -> Step | None:
    """What a task with three inputs does next; the outside is known up to 100, and nothing is published before 70."""

    def first(specs: Sequence[InputSpec]) -> int | None:
        return min((stored[spec.name] for spec in specs if spec.name in stored), default=None)

    horizon = Horizon({"t/outside": 100, "t/itself": 20}, earliest=70, now=1_000)
    levels = by_priority([OUTSIDE, FED_BACK, FIRST], TICK)
    return next_step(levels, lambda spec: positions.get(spec.name, 0), first, horizon)


def test_highest_priority_advances_first_within_its_frontiers() -> None:
    assert step({}, {"first": 95, "outside": 3}) == Step((FIRST,), 100, 95)
    # What has a document behind the bound has none.
    assert step({}, {"first": 101, "outside": 3}) == Step((OUTSIDE, FED_BACK), 80, 3)
    assert step({"back": 80}, {"outside": 3}) == Step((OUTSIDE,), 80, 3)


def test_time_without_documents_advances_as_all_priorities_allow() -> None:
    moved = step({"first": 100}, {"outside": 85})
    assert moved == Step((OUTSIDE, FED_BACK), 80, 80)
    assert not moved.has_documents
    assert step({"first": 100, "outside": 80, "back": 80}, {"outside": 85}) is None
