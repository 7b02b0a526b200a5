"""The generator of transfers: the same for a seed, ascending, and exact to sum."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from example_script import import_script

generate = import_script("acmebank/generate.py")


def _transfers(count: int, seed: int = 1, accounts: int = 50) -> list[dict[str, Any]]:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return list(generate.transfers(count, accounts, seed=seed, start=start, every=timedelta(milliseconds=400)))


def test_times_ascend_from_the_start() -> None:
    assert [each["at"] for each in _transfers(4)] == [
        "2024-01-01T00:00:00.000000Z",
        "2024-01-01T00:00:00.400000Z",
        "2024-01-01T00:00:00.800000Z",
        "2024-01-01T00:00:01.200000Z",
    ]


def test_a_seed_gives_the_same_transfers_again_and_another_seed_others() -> None:
    assert _transfers(100, seed=7) == _transfers(100, seed=7)
    assert _transfers(100, seed=7) != _transfers(100, seed=8)


def test_ids_count_up_and_more_transfers_begin_with_the_fewer() -> None:
    many = _transfers(50)
    assert [each["id"] for each in many] == list(range(1, 51))
    assert _transfers(20) == many[:20]


def test_nobody_sends_to_themselves_even_among_two() -> None:
    assert all(each["sender"] != each["recipient"] for each in _transfers(500, accounts=2))


def test_amounts_are_quarters_and_one_in_ten_is_large() -> None:
    amounts = [each["amount"] for each in _transfers(10_000)]
    assert all(amount > 0 and (amount * 4).is_integer() for amount in amounts)
    assert 900 < sum(amount > 100 for amount in amounts) < 1100
