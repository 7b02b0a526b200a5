"""When Spark is worth what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.engine.executor import EFFICIENCY, JOB_SECONDS, STARTING_TAKES, CostModel, Work


def work(seconds: float, parts: int = 2, documents: int = 1_000) -> Work:
    return Work(documents, seconds, parts)


@pytest.mark.parametrize(
    ("cores", "start", "waiting", "cost_model"),
    [
        # On two cores Spark has to save seven seconds, while this process goes on at more than half its speed.
        (2, 4.5, [work(7)], False),
        (2, 4.5, [work(8)], True),
        (2, 7.5, [work(8)], False),
        (2, 7.5, [work(13)], True),
        # What waits for several tasks adds up.
        (2, 4.5, [work(4), work(4)], True),
        # One part keeps one core busy, as it does here.
        (2, 4.5, [work(1_000, parts=1)], False),
        (2, 4.5, [work(500, parts=1), work(500, parts=1)], True),
        (2, 4.5, [work(500, parts=1), Work(0, 0.0, 8)], False),
        # With more cores less is enough.
        (16, 4.5, [work(4.7, parts=16)], True),
        (16, 4.5, [work(4.7)], False),
        (1, 4.5, [work(1_000)], False),
    ],
)
def test_spark_starts_where_it_saves_time(cores: int, start: float, waiting: list[Work], cost_model: bool) -> None:
    assert CostModel(cores, start).is_start(waiting) is cost_model


@pytest.mark.parametrize(
    ("waiting", "cost_model"),
    [([work(0.4)], False), ([work(0.6)], True), ([work(60, parts=1)], False), ([work(60, 1), work(1, 1)], True)],
)
def test_job_needs_less_work_than_a_start(waiting: list[Work], cost_model: bool) -> None:
    assert CostModel(2).is_job(waiting[0], waiting) is cost_model


@given(
    st.integers(1, 64),
    st.floats(0.1, 60),
    st.lists(st.builds(work, st.floats(0, 100), st.integers(1, 64)), min_size=1, max_size=4),
)
def test_spark_starts_where_it_ends_earlier(cores: int, start: float, waiting: list[Work]) -> None:
    """The oracle lets the time pass, in small steps."""
    left = total = sum(work.seconds for work in waiting)
    gain = EFFICIENCY * min(cores, sum(work.parts for work in waiting))
    time, step = 0.0, 0.01
    while left > 0 and time <= total + start:
        speed = gain if time >= start else max(0.0, 1 - STARTING_TAKES / cores)
        left -= speed * step
        time += step

    if abs(time - total) > 0.1:  # as well one as the other
        assert CostModel(cores, start).is_start(waiting) is (time < total)


@pytest.mark.parametrize(("most", "cost_model"), [(999, True), (1_000, False), (1_001, False)])
def test_local_documents_option_precedes_the_cost_model(most: int, cost_model: bool) -> None:
    waiting = [work(JOB_SECONDS / 100), work(1_000, 1, documents=0)]

    assert CostModel(2, local_documents=most).is_start(waiting) is cost_model
    assert CostModel(2, local_documents=most).is_job(waiting[0], waiting) is cost_model
