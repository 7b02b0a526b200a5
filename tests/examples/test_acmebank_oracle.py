"""The oracle of AcmeBank, on cases worked out by hand, and by its laws on any transfers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from example_script import import_script
from hypothesis import given
from hypothesis import strategies as st
from oracle_acmebank import (
    expected_balances,
    expected_first_sends,
    expected_grouped_transfers,
    expected_last_large_sends,
    expected_outcomes,
    violations,
)


def _transfer(number: int, at: str, sender: str, recipient: str, amount: float) -> dict[str, Any]:
    return {"id": number, "sender": sender, "recipient": recipient, "amount": amount, "at": f"2024-01-{at}Z"}


def _numbered(*transfers: tuple[str, str, float], apart: int = 0) -> list[dict[str, Any]]:
    """Transfers that are so many seconds apart."""
    return [_transfer(1 + place, f"01T00:00:{place * apart:02}", *each) for place, each in enumerate(transfers)]


@st.composite
def transfers(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Few accounts, amounts near their means, and times so close that credits are often still under way."""
    offsets = sorted(draw(st.lists(st.integers(0, 12), max_size=30)))
    pairs = st.permutations(["a", "b", "c"])
    found = []
    for number, offset in enumerate(offsets, start=1):
        sender, recipient, _ = draw(pairs)
        amount = draw(st.integers(1, 5000)) / 4
        found.append(_transfer(number, f"01T00:00:{offset // 4:02}.{offset % 4 * 25:02}", sender, recipient, amount))
    return found


def test_last_large_send_is_the_last_above_100() -> None:
    transfers = _numbered(("a", "b", 101), ("a", "c", 250.5), ("a", "d", 100), ("b", "d", 5), apart=1)
    assert expected_last_large_sends(transfers) == {"a": {"id": 2, "sender": "a", "recipient": "c", "amount": 250.5}}


def test_first_send_is_the_first_of_each_direction() -> None:
    found = expected_first_sends(_numbered(("a", "b", 1), ("a", "b", 2), ("b", "a", 3)))
    assert sorted(found) == [1, 3]
    assert found[3] == {"id": 3, "sender": "b", "recipient": "a", "amount": 3}


@pytest.mark.parametrize(
    ("at", "window"),
    [
        ("01T12:00:00.000001", [7, 9]),  # the same moment as another, after it in the file; ordered by id
        ("02T12:00:00", [7, 9]),  # exactly 24 hours later: still there
        ("02T12:00:00.000001", [7]),  # a moment more, and the first is gone
        ("02T12:00:00.5", []),  # and both
    ],
)
def test_window_covers_the_preceding_24_hours(at: str, window: list[int]) -> None:
    earlier = [
        _transfer(9, "01T12:00:00", "a", "b", 2),
        _transfer(7, "01T12:00:00.000001", "a", "b", 1),
        _transfer(8, "01T12:00:00.000001", "b", "a", 1),
    ]
    found = expected_grouped_transfers([*earlier, _transfer(10, at, "a", "d", 3)])
    assert [each["id"] for each in found[10]["window"]] == window


def test_window_has_the_documents_that_the_catalog_selects() -> None:
    found = expected_grouped_transfers(_numbered(("a", "b", 5), ("a", "c", 6)))[2]
    window = [{"id": 1, "recipient": "b", "amount": 5}]
    assert found == {"id": 2, "sender": "a", "recipient": "c", "amount": 6, "window": window}


@pytest.mark.parametrize(
    ("at", "outcome", "balance"),
    [
        ("01T00:00:00", "deny", 1000),  # at once: the credit is not there
        ("01T00:00:01", "deny", 1000),  # exactly one tick later: debits come before credits
        ("01T00:00:01.000001", "approve", 0),  # a moment later it is
    ],
)
def test_a_credit_arrives_after_one_tick(at: str, outcome: str, balance: float) -> None:
    found = expected_outcomes([_transfer(1, "01T00:00:00", "a", "b", 500.25), _transfer(2, at, "b", "c", 1500.25)])
    assert (found[1]["outcome"], found[1]["sender_balance"]) == ("approve", 499.75)
    assert (found[2]["outcome"], found[2]["sender_balance"]) == (outcome, balance)


def test_denied_transfer_credits_no_account() -> None:
    outcomes = expected_outcomes(_numbered(("a", "b", 1000.25), ("b", "c", 1000.25), ("b", "c", 1000), apart=5))
    assert [outcomes[number]["outcome"] for number in (1, 2, 3)] == ["deny", "deny", "approve"]
    assert expected_balances(outcomes) == {"b": {"user": "b", "balance": -1000}, "c": {"user": "c", "balance": 1000}}


@given(transfers())
def test_expected_outcomes_break_no_rule(given_transfers: list[dict[str, Any]]) -> None:
    assert violations(given_transfers, expected_outcomes(given_transfers)) == []


@given(transfers())
def test_transfers_neither_create_nor_lose_money(given_transfers: list[dict[str, Any]]) -> None:
    balances = expected_balances(expected_outcomes(given_transfers))
    assert sum(each["balance"] for each in balances.values()) == 0


@given(transfers().filter(bool), st.data())
def test_changed_outcome_breaks_a_rule(given_transfers: list[dict[str, Any]], data: st.DataObject) -> None:
    outcomes = expected_outcomes(given_transfers)
    changed = outcomes[data.draw(st.sampled_from(sorted(outcomes)))]
    changed["outcome"] = "deny" if changed["outcome"] == "approve" else "approve"
    assert violations(given_transfers, outcomes)


@given(transfers().filter(bool), st.data())
def test_changed_balance_breaks_a_rule(given_transfers: list[dict[str, Any]], data: st.DataObject) -> None:
    outcomes = expected_outcomes(given_transfers)
    outcomes[data.draw(st.sampled_from(sorted(outcomes)))]["sender_balance"] += 0.25
    assert len(violations(given_transfers, outcomes)) == 1


# The generator of transfers: the same for a seed, ascending, and exact to sum.


generate = import_script("acmebank/generate.py")


def _transfers(count: int, seed: int = 1, accounts: int = 50) -> list[dict[str, Any]]:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return list(generate.transfers(count, accounts, seed=seed, start=start, every=timedelta(milliseconds=400)))


def test_times_ascend_from_the_start() -> None:
    seconds = [each["at"].removeprefix("2024-01-01T00:00:0") for each in _transfers(4)]
    assert seconds == ["0.000000Z", "0.400000Z", "0.800000Z", "1.200000Z"]


def test_seed_determines_the_transfers() -> None:
    assert _transfers(100, seed=7) == _transfers(100, seed=7)
    assert _transfers(100, seed=7) != _transfers(100, seed=8)


def test_ids_ascend_and_longer_histories_extend_shorter_ones() -> None:
    many = _transfers(50)
    assert [each["id"] for each in many] == list(range(1, 51))
    assert _transfers(20) == many[:20]


def test_transfers_have_distinct_parties() -> None:
    assert all(each["sender"] != each["recipient"] for each in _transfers(500, accounts=2))


def test_amounts_are_multiples_of_a_quarter_and_a_tenth_of_them_is_large() -> None:
    amounts = [each["amount"] for each in _transfers(10_000)]
    assert all(amount > 0 and (amount * 4).is_integer() for amount in amounts)
    assert 900 < sum(amount > 100 for amount in amounts) < 1100
