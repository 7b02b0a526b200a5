"""What AcmeBank's derived collections must hold, computed from the transfers in plain Python.

An oracle is worth having only if it shares nothing with what it judges: no SQL, no engine, no reductions. The rules of
time it follows are those of the design: documents are processed in ascending clock; a delayed or fed-back document has
its clock moved by the delay or by one tick; and at equal adjusted clocks, transforms go in the order of the catalog.

Every function takes transfers with distinct ids, as ingested with `--clock /at`: ascending by `at`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]

TICK = 1_000_000
"""Microseconds from the publication of an outcome to its being read by the derivation that published it."""

DAY = 86_400_000_000
OPENING_BALANCE = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def clock_of(transfer: Document) -> int:
    """Microseconds from the Unix epoch to the transfer's time."""
    return (datetime.fromisoformat(transfer["at"]) - _EPOCH) // _MICROSECOND


def expected_last_large_sends(transfers: Iterable[Document]) -> dict[str, Document]:
    """acmeBank/last-large-send, by sender."""
    return {each["sender"]: _request(each) for each in transfers if each["amount"] > 100}


def expected_first_sends(transfers: Iterable[Document]) -> dict[int, Document]:
    """acmeBank/first-send, by id."""
    first: dict[tuple[str, str], Document] = {}
    for each in transfers:
        first.setdefault((each["sender"], each["recipient"]), each)
    return {each["id"]: _request(each) for each in first.values()}


def expected_grouped_transfers(transfers: Iterable[Document]) -> dict[int, Document]:
    """acmeBank/grouped-transfers, by id.

    A transfer of exactly 24 hours ago is still in the window: it is both added to and taken from the window at that
    clock, and adding comes first in the catalog.
    """
    sent: dict[str, deque[tuple[int, Document]]] = defaultdict(deque)
    grouped = {}
    for each in transfers:
        clock = clock_of(each)
        window = sent[each["sender"]]
        while window and window[0][0] + DAY < clock:
            window.popleft()
        others = [{name: other[name] for name in ("id", "recipient", "amount")} for _, other in window]
        grouped[each["id"]] = {**_request(each), "window": sorted(others, key=lambda other: other["id"])}
        window.append((clock, each))
    return grouped


def expected_outcomes(transfers: Iterable[Document]) -> dict[int, Document]:
    """acmeBank/transfer-outcomes, by id."""
    balances: dict[str, float] = defaultdict(lambda: OPENING_BALANCE)
    arriving: deque[tuple[int, Document]] = deque()  # ascending by when they arrive
    outcomes = {}
    for each in transfers:
        clock, sender, amount = clock_of(each), each["sender"], each["amount"]
        # At equal clocks debits come first, as they do in the catalog.
        while arriving and arriving[0][0] < clock:
            _, credit = arriving.popleft()
            balances[credit["recipient"]] += credit["amount"]
        approved = balances[sender] >= amount
        if approved:
            balances[sender] -= amount
            arriving.append((clock + TICK, each))
        outcomes[each["id"]] = {
            **_request(each),
            "outcome": "approve" if approved else "deny",
            "sender_balance": balances[sender],
        }
    return outcomes


def expected_balances(outcomes: Mapping[int, Document]) -> dict[str, Document]:
    """acmeBank/balances, by user; exact for amounts that are multiples of a power of two."""
    moved: dict[str, float] = defaultdict(float)
    for each in outcomes.values():
        if each["outcome"] == "approve":
            moved[each["sender"]] -= each["amount"]
            moved[each["recipient"]] += each["amount"]
    return {user: {"user": user, "balance": balance} for user, balance in moved.items()}


def violations(transfers: Sequence[Document], outcomes: Mapping[int, Document]) -> list[str]:
    """Where outcomes break the rule that an account spends all and only what it had received a tick before.

    Nothing is simulated: whether a transfer may be approved follows from the claimed outcomes of the others.
    """
    arrivals: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for each in transfers:
        if outcomes[each["id"]]["outcome"] == "approve":
            arrivals[each["recipient"]].append((clock_of(each) + TICK, each["amount"]))
    clocks = {account: [clock for clock, _ in found] for account, found in arrivals.items()}
    totals = {account: [0, *accumulate(amount for _, amount in found)] for account, found in arrivals.items()}
    spent: dict[str, float] = defaultdict(float)
    broken = []
    for each in transfers:
        sender, amount, outcome = each["sender"], each["amount"], outcomes[each["id"]]
        arrived = totals.get(sender, [0])[bisect_left(clocks.get(sender, []), clock_of(each))]
        available = OPENING_BALANCE + arrived - spent[sender]
        approved = outcome["outcome"] == "approve"
        if approved != (available >= amount):
            broken.append(f"transfer {each['id']}: {outcome['outcome']} of {amount} though {sender} has {available}")
        if approved:
            spent[sender] += amount
        left = available - amount if approved else available
        if outcome["sender_balance"] != left:
            broken.append(f"transfer {each['id']}: leaves {left} and not {outcome['sender_balance']}")
    return broken


def _request(transfer: Document) -> Document:
    return {name: transfer[name] for name in ("id", "sender", "recipient", "amount")}
