"""Instruments: the definitions of metrics, and the values that a process counts for them.

A counter is a number that only its owner changes, so counting costs nothing that a measurement finds. A sample is made
from it only when a monitoring system asks. Nothing is counted for each document.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of durations, in seconds: from a lookup in memory to a transaction on a cluster."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The definition of a metric.

    Attributes:
        name: name in the text format of Prometheus; a counter ends with `_total`.
        kind: kind in the text format of Prometheus.
        help: one sentence about the value, for people.
        labels: names of the labels, whose values are names of tasks, views and the like, and never data.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values that a histogram has observed up to now.

    Attributes:
        cumulative: number of values up to each bound, by bound; the last bound is infinite.
        total: sum of the values.
    """

    cumulative: Mapping[float, int]
    total: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric.

    Attributes:
        metric: the metric.
        value: the value.
        labels: values of the labels, in the order of the metric's labels.
    """

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()


SampleSource: TypeAlias = Callable[[], Iterable[Sample]]
"""A function that returns the present samples of a part of the process."""


@dataclass(slots=True)
class Histogram:
    """Observed values, counted by buckets; one thread at a time observes.

    Attributes:
        bounds: inclusive upper bounds of the buckets, ascending.
        counts: number of values in each bucket; the last bucket has the values above all bounds.
        total: sum of the values.

    >>> histogram = Histogram((0.1, 1.0))
    >>> for value in (0.05, 0.1, 0.5, 7.0): histogram.observe(value)
    >>> dict(histogram.distribution().cumulative)
    {0.1: 2, 1.0: 3, inf: 4}
    """

    bounds: Sequence[float] = SECONDS
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def distribution(self) -> Distribution:
        """Return the values observed up to now."""
        bounds = (*self.bounds, float("inf"))
        return Distribution(dict(zip(bounds, accumulate(self.counts), strict=True)), self.total)
