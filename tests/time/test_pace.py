"""Pace: less after a loss, and more again after successes."""

from __future__ import annotations

from derive.time.extent import Limits, Pace, Size


def test_sizes_that_fail_repeatedly_are_retried_less_often() -> None:
    pace = Pace(Limits(documents=800))
    lost = 0
    for _ in range(200):
        if pace.limits.documents > 500:
            pace.slow_down(Size(pace.limits.documents, 1))
            lost += 1
        else:
            pace.speed_up()

    assert lost == 9


def test_success_raises_the_limits_of_a_task() -> None:
    pace = Pace(Limits(documents=1000, bytes=5000))
    pace.slow_down(Size(documents=100, bytes=3))
    seen = [pace.limits]
    for _ in range(6):
        pace.speed_up()
        seen.append(pace.limits)

    assert [limits.documents for limits in seen] == [50, 100, 200, 400, 800, 1000, 1000]
    assert [limits.bytes for limits in seen] == [1, 2, 4, 8, 16, 32, 64]
