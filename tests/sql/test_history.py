"""The checker of histories: it passes what a serial order explains and catches what none does; and a sample of torture."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from history import Event, Outcome, Read, Write, violations
from hypothesis import given
from hypothesis import strategies as st
from torture_sql import SqlTorture

SEEDS = st.integers(0, 2**32)

BEFORE = frozenset(["a:0-x", "b:0-x"])
"""What was written before a history."""


def serial(chance: random.Random, length: int = 40) -> list[Event]:
    """A history whose events take effect one after the other, at moments 100 apart, each somewhere within its event.

    Moments are unique. The last event reads everything.
    """
    rows = set(BEFORE)
    lists: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int] = {}
    history: list[Event] = [Read("0", -1000, -999, frozenset(), {}, {}, {}), Write("0", -998, -997, BEFORE, Outcome.OK)]
    for number in range(length):
        client, name = str(chance.randrange(4)), f"{number % 4}-{number}"
        begin = number * 100 - chance.randrange(250)
        end = number * 100 + 1 + chance.randrange(250)
        kind = chance.choice(["blind", "list", "count", "failed", "unknown", "delete", "told", "read", "read"])
        if kind == "read" or number == length - 1:
            pairs = [row[2:].partition("-")[0] for row in rows if row.startswith("a:") and f"b:{row[2:]}" in rows]
            view = {client: pairs.count(client) for client in pairs}
            end = 10**6 if number == length - 1 else end
            begin = 10**6 - 1 if number == length - 1 else begin
            history.append(Read(client, begin, end, frozenset(rows), dict(lists), dict(counts), view))
            continue
        if kind == "told":
            history.append(Read("s", -(10**9), end, frozenset(rows), dict(lists), dict(counts), clock=number))
            continue
        removed = sorted(row for row in rows if row.startswith("b:")) if kind == "delete" else []
        if removed:
            removes = frozenset([chance.choice(removed)])
            counts = {row: count for row, count in counts.items() if row not in removes}
            rows = (rows - removes) | {f"gone:{name}"}
            history.append(Write(client, begin, end, frozenset([f"gone:{name}"]), Outcome.OK, removes))
            continue
        if kind == "list":
            written = {f"list:{name}"}
            lists["l"] = (*lists.get("l", ()), f"list:{name}")
        elif kind == "count":
            written = {f"b:{name}"}
            counts[f"b:{name}"] = sum(row.startswith("a:") for row in rows)
        else:
            written = {f"a:{name}", f"b:{name}"}
        outcome = {"failed": Outcome.FAILED, "unknown": Outcome.UNKNOWN}.get(kind, Outcome.OK)
        if outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and chance.random() < 0.5):
            rows |= written
        history.append(Write(client, begin, end, frozenset(written), outcome))
    return history


@given(SEEDS)
def test_serial_histories_pass(seed: int) -> None:
    chance = random.Random(seed)
    history = serial(chance)
    chance.shuffle(history)

    assert violations(history) == []


def last_read(history: list[Event]) -> Read:
    read = history[-1]
    assert isinstance(read, Read)
    return read


def without(read: Read, rows: frozenset[str]) -> Read:
    """A read that has not seen some rows; its view agrees with that."""
    lists = {name: tuple(row for row in elements if row not in rows) for name, elements in read.lists.items()}
    counts = {row: count for row, count in read.counts.items() if row not in rows}
    return replace(read, rows=read.rows - rows, lists=lists, counts=counts, view=None)


def of(history: list[Event], *outcomes: Outcome, tables: int = 0) -> list[Write]:
    """Writes with these outcomes, to as many tables."""
    writes = [event for event in history if isinstance(event, Write)]
    return [write for write in writes if write.outcome in outcomes and len(write.rows) >= tables]


def lost_write(chance: random.Random, history: list[Event]) -> None:
    deleted = frozenset[str]().union(*(write.removes for write in of(history, Outcome.OK)))
    lost = chance.choice([write for write in of(history, Outcome.OK) if not write.rows <= deleted])
    history[:] = [without(event, lost.rows) if isinstance(event, Read) else event for event in history]


def stale_read(chance: random.Random, history: list[Event]) -> None:
    first = next(event for event in history if isinstance(event, Read))
    written = [write for write in of(history, Outcome.OK) if not write.rows & first.rows]
    end = max(write.end for write in written)
    history.insert(0, replace(first, begin=end + 1, end=end + 2))


def half_of_a_transaction(chance: random.Random, history: list[Event]) -> None:
    torn = chance.choice(of(history, Outcome.OK, tables=2))
    history[-1] = without(last_read(history), frozenset([min(torn.rows)]))


def back_in_time(chance: random.Random, history: list[Event]) -> None:
    """What one read has seen, the next has not, though its outcome is not known."""
    seen = Write("x", 0, 10**7, frozenset(["a:x-1"]), Outcome.UNKNOWN)
    last = last_read(history)
    history[-1:] = [seen, replace(last, rows=last.rows | seen.rows, begin=10**6, end=10**6 + 1, view=None)]
    history.append(replace(last, begin=10**6 + 2, end=10**6 + 3))


def unknown_happens_late(chance: random.Random, history: list[Event]) -> None:
    """It was not there when its end was known, and then is."""
    seen = Write("x", 0, 10**6 - 2, frozenset(["a:x-1"]), Outcome.UNKNOWN)
    last = last_read(history)
    history += [seen, replace(last, rows=last.rows | seen.rows, begin=10**6 + 2, end=10**6 + 3, view=None)]


def later_without_earlier(chance: random.Random, history: list[Event]) -> None:
    """A read sees a write, and not one that ended before that began; it is beside both."""
    first = Write("x", 10**6 + 10, 10**6 + 11, frozenset(["a:x-1"]), Outcome.OK)
    second = Write("y", 10**6 + 12, 10**6 + 13, frozenset(["a:y-1"]), Outcome.OK)
    last = last_read(history)
    read = replace(last, rows=last.rows | second.rows, begin=10**6 + 9, end=10**6 + 14, view=None)
    history += [first, second, read]


def no_order(chance: random.Random, history: list[Event]) -> None:
    """Two reads side by side, each of which sees another write."""
    last = last_read(history)
    for client in "xy":
        row = frozenset([f"a:{client}-1"])
        history.append(Write(client, 10**6 + 10, 10**6 + 20, row, Outcome.OK))
        history.append(replace(last, rows=last.rows | row, begin=10**6 + 10, end=10**6 + 20, view=None))


def from_the_future(chance: random.Random, history: list[Event]) -> None:
    row = frozenset(["a:x-1"])
    history[-1] = replace(last_read(history), rows=last_read(history).rows | row, view=None)
    history.append(Write("x", 10**6 + 10, 10**6 + 11, row, Outcome.OK))


def failed_write(chance: random.Random, history: list[Event]) -> None:
    failed = Write("x", 0, 1, frozenset(["a:x-1"]), Outcome.FAILED)
    history[-1] = replace(last_read(history), rows=last_read(history).rows | failed.rows, view=None)
    history.append(failed)


def nobodys_row(chance: random.Random, history: list[Event]) -> None:
    history[-1] = replace(last_read(history), rows=last_read(history).rows | {"a:x-1"}, view=None)


def lost_update(chance: random.Random, history: list[Event]) -> None:
    """The list of one read does not go on from that of another."""
    last = last_read(history)
    added = [Write(name, 0, 10**7, frozenset([f"list:{name}"]), Outcome.OK) for name in ("x-1", "x-2")]
    lists = [("list:x-1",), ("list:x-2", "list:x-1")]
    rows = last.rows | added[0].rows
    history += added
    history.append(replace(last, rows=rows, begin=10**6, end=10**7, lists={"m": lists[0]}, view=None))
    rows |= added[1].rows
    history.append(replace(last, rows=rows, begin=10**6, end=10**7, lists={"m": lists[1]}, view=None))


def wrong_view(chance: random.Random, history: list[Event]) -> None:
    history[-1] = replace(last_read(history), view={**(last_read(history).view or {}), "x": 1})


def wrong_count(chance: random.Random, history: list[Event]) -> None:
    last = last_read(history)
    size = sum(row.startswith("a:") for row in last.rows)
    history.append(Write("x", 10**6 + 10, 10**6 + 11, frozenset(["b:x-1"]), Outcome.OK))
    counts = {**last.counts, "b:x-1": size + chance.choice([-1, 1])}
    rows = last.rows | {"b:x-1"}
    history.append(replace(last, rows=rows, begin=10**6 + 12, end=10**6 + 13, counts=counts))


def removed(history: list[Event], outcome: Outcome = Outcome.OK) -> Write:
    """A deletion of a row that was always there; it is read by the last event."""
    deletion = Write("x", 10**6 - 10, 10**6 - 9, frozenset(["gone:x-1"]), outcome, frozenset(["b:y-1"]))
    history += [Write("y", -996, -995, frozenset(["b:y-1"]), Outcome.OK), deletion]
    history[:] = [
        replace(event, rows=event.rows | {"b:y-1"}, view=None) if isinstance(event, Read) and event.end > 0 else event
        for event in history
    ]
    return deletion


def deleted_and_read(chance: random.Random, history: list[Event]) -> None:
    last = last_read(history)
    rows = removed(history).rows
    history.append(replace(last, rows=last.rows | rows | {"b:y-1"}, begin=10**6 + 2, end=10**6 + 3, view=None))


def deletion_is_lost(chance: random.Random, history: list[Event]) -> None:
    """It is acknowledged, and the row is there as before."""
    last = last_read(history)
    removed(history)
    history.append(replace(last, rows=last.rows | {"b:y-1"}, begin=10**6 + 2, end=10**6 + 3, view=None))


def deleted_by_nobody(chance: random.Random, history: list[Event]) -> None:
    last = last_read(history)
    history.append(Write("y", -996, -995, frozenset(["b:y-1"]), Outcome.OK))
    history.append(replace(last, begin=10**6 + 2, end=10**6 + 3))


def deletion_misses(chance: random.Random, history: list[Event]) -> None:
    missed = frozenset(["b:0-x"])
    history.append(Write("x", 10**6 + 2, 10**6 + 3, frozenset(["gone:x-1"]), Outcome.OK, missed=missed))


def told(history: list[Event], clock: int, rows: frozenset[str], end: int = 10**8) -> None:
    """A subscription has told what the last read has seen, and some more."""
    last = last_read(history)
    history.insert(0, replace(last, client="s", begin=-(10**9), end=end, rows=rows, view=None, clock=clock))


def subscription_loses_an_update(chance: random.Random, history: list[Event]) -> None:
    """What it tells later lacks what it has told."""
    last = last_read(history)
    told(history, 10**6, last.rows)
    told(history, 10**6 + 1, without(last, BEFORE).rows)


def subscription_in_another_order(chance: random.Random, history: list[Event]) -> None:
    """It tells first of what was written last."""
    last = last_read(history)
    for client, begin in (("x", 10**6 + 10), ("y", 10**6 + 20)):
        history.insert(0, Write(client, begin, begin + 1, frozenset([f"a:{client}-1"]), Outcome.OK))
    told(history, 10**6, last.rows | {"a:y-1"})


def subscription_goes_back(chance: random.Random, history: list[Event]) -> None:
    """It tells of a later time what was so at an earlier one."""
    last = last_read(history)
    history.insert(0, Write("x", 10**6 + 10, 10**6 + 11, frozenset(["a:x-1"]), Outcome.OK))
    told(history, 10**6, last.rows | {"a:x-1"})
    told(history, 10**6 + 1, last.rows)


def subscriptions_differ(chance: random.Random, history: list[Event]) -> None:
    """One, going on after a crash, tells another thing of the same time."""
    last = last_read(history)
    history.insert(0, Write("x", 10**6 + 10, 10**6 + 11, frozenset(["a:x-1"]), Outcome.OK))
    told(history, 10**6, last.rows)
    told(history, 10**6, last.rows | {"a:x-1"})


def subscription_tells_of_the_future(chance: random.Random, history: list[Event]) -> None:
    last = last_read(history)
    history.insert(0, Write("x", 10**6 + 10, 10**6 + 11, frozenset(["a:x-1"]), Outcome.OK))
    told(history, 10**6, last.rows | {"a:x-1"}, end=10**6 + 5)


MUTANTS = [
    lost_write, stale_read, half_of_a_transaction, back_in_time, unknown_happens_late, later_without_earlier, no_order,
    from_the_future, failed_write, nobodys_row, lost_update, wrong_view, wrong_count,
    deleted_and_read, deletion_is_lost, deleted_by_nobody, deletion_misses, subscription_loses_an_update,
    subscription_in_another_order, subscription_goes_back, subscriptions_differ, subscription_tells_of_the_future,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@given(seed=SEEDS)
def test_history_check_detects_mutants(mutant: Callable[[random.Random, list[Event]], None], seed: int) -> None:
    chance = random.Random(seed)
    history = serial(chance)
    mutant(chance, history)

    assert violations(history)


def test_a_server_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    torture = SqlTorture(tmp_path, seed=1, clients=4)
    torture.run(rounds=2)

    assert torture.kills == 2
    assert torture.outcomes[Outcome.OK] > 0
    assert torture.deletions > 0
    assert torture.told > 0
