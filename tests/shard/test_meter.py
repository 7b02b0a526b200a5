"""Measurement of lambdas by transform."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from derive.shard.meter import Meter
from derive.shard.published import Documents, Published
from derive.storage.metadata.descriptions import Work


def parts(*causes: Sequence[int]) -> list[Published]:
    """Return publications with these causes."""
    return [
        Published(some, np.zeros(len(some), np.int64), [b""] * len(some), Documents([{} for _ in some]))
        for some in causes
    ]


@pytest.mark.parametrize("repeats", [1, 40], ids=["few documents", "many documents"])
@pytest.mark.parametrize("is_array", [False, True], ids=["a list", "an array"])
@pytest.mark.parametrize(
    ("transforms", "causes", "counts"),
    [
        ([0, 0, 0], [[0, 0], [2]], [(3, 3), (0, 0)]),  # one transform
        ([1, 1], [], [(0, 0), (2, 0)]),
        ([0, 1, 0], [[0, 1, 1]], [(2, 1), (1, 2)]),  # several transforms
        ([0, 2], [[0], [1, 1]], [(1, 1), (0, 0)]),  # the end of a tick publishes, too
        ([2], [[0]], [(0, 0), (0, 0)]),  # nothing but the end of a tick
    ],
)
def test_meter_counts_by_transform(
    transforms: list[int], causes: list[list[int]], counts: list[tuple[int, int]], *, is_array: bool, repeats: int
) -> None:
    meter = Meter(2)
    repeated = [transform for transform in transforms for _ in range(repeats)]
    batch = np.array(repeated) if is_array else repeated
    scaled = [[cause * repeats for cause in some] for some in causes]

    passed = list(meter.measured(batch, iter(parts(*scaled))))

    assert [part.causes for part in passed] == scaled
    work = meter.work()
    assert [(done.documents, done.published) for done in work] == [(repeats * read, out) for read, out in counts]
    assert all(bool(done.micros) <= bool(done.documents) for done in work)


def test_works_are_added() -> None:
    assert Work(1, 2, 3) + Work(10, 20, 30) == Work(11, 22, 33)
