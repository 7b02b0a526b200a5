from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from derive.algebra.types import Row, Type
from derive.compute.protocol.messages import TailResponse
from derive.sql.execution.subscribe import Subscription

Update = tuple[int, Row, int]
ROWS = st.tuples(st.integers(0, 2), st.none() | st.sampled_from("ab"))
HISTORIES = st.lists(st.tuples(st.integers(1, 20), ROWS, st.sampled_from([1, 1, -1])), max_size=30)


class History:
    """A relation whose updates are known, and that tells them up to the frontiers that it is given."""

    types = (Type.BIGINT, Type.TEXT)

    def __init__(self, updates: list[Update], as_of: int, frontiers: list[int]) -> None:
        self.updates, self.since, self.frontier = updates, as_of, as_of + 1
        self.frontiers = iter(sorted(frontiers))

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        yield [row for row, count in self.at(as_of).items() for _ in range(count)]

    def at(self, time: int) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for at, row, diff in self.updates:
            counts[row] += diff if at <= time else 0
        return counts

    def poll(self) -> tuple[int, list[Update]]:
        before, self.frontier = self.frontier, max(self.frontier, next(self.frontiers, self.frontier))
        told = [update for update in self.updates if before <= update[0] < self.frontier]
        return self.frontier, sorted(told, key=lambda update: update[0])

    def responses(self, *, has_snapshot: bool, up_to: int | None) -> Iterator[TailResponse]:
        """What an instance tells of it."""
        frontier = self.since
        if up_to is None or up_to > frontier:
            rows = [row for batch in self.snapshot(self.since) for row in batch] if has_snapshot else []
            yield TailResponse(1, frontier, frontier + 1, tuple((frontier, row, 1) for row in rows))
            frontier += 1
        while True:
            upper, updates = self.poll()
            end = upper if up_to is None else min(upper, up_to)
            if end > frontier:
                yield TailResponse(1, frontier, end, tuple(update for update in updates if update[0] < end))
                frontier = end
            else:
                yield TailResponse(1, frontier, frontier, ())


def valid(changes: list[Update]) -> list[Update]:
    """Updates that never take a row away that is not there."""
    counts: Counter[Row] = Counter()
    kept = []
    for update in sorted(changes, key=lambda change: change[0]):
        if counts[update[1]] + update[2] >= 0:
            counts[update[1]] += update[2]
            kept.append(update)
    return kept


def sent(
    history: History, polls: int, *, has_snapshot: bool, has_progress: bool, up_to: int | None = None
) -> tuple[list[Row], Subscription]:
    """All rows that are sent in so many polls, and the subscription after them."""
    subscription = Subscription(2, history.since, has_snapshot=has_snapshot, has_progress=has_progress, up_to=up_to)
    rows = list(subscription.begin())
    for response in islice(history.responses(has_snapshot=has_snapshot, up_to=up_to), 1 + polls):
        if subscription.is_ended:
            break
        rows += subscription.rows(response)
    return rows, subscription


@given(HISTORIES, st.integers(0, 21), st.lists(st.integers(0, 25), max_size=6), st.none() | st.integers(0, 25))
def test_what_was_sent_adds_up_to_the_relation_at_each_time(
    changes: list[Update], as_of: int, frontiers: list[int], up_to: int | None
) -> None:
    history = History(valid(changes), as_of, frontiers)
    rows, subscription = sent(history, len(frontiers), has_snapshot=True, has_progress=True, up_to=up_to)
    counts: Counter[tuple[object, ...]] = Counter()
    progress = as_of
    for time, is_progress, diff, *row in rows:
        assert isinstance(time, int)
        assert time >= progress
        if is_progress:
            assert diff is None
            assert time > progress
            progress = time
            assert +counts == +history.at(progress - 1)
        else:
            assert isinstance(diff, int)
            assert up_to is None or time < up_to
            counts[tuple(row)] += diff
    assert progress == subscription.frontier
    assert subscription.is_ended == (up_to is not None and up_to <= subscription.frontier)
    last = max([as_of + 1, *frontiers])
    assert subscription.frontier == (last if up_to is None else max(as_of, min(last, up_to)))


@given(
    HISTORIES,
    st.integers(0, 10),
    st.lists(st.integers(0, 25), min_size=1, max_size=5),
    st.lists(st.integers(0, 8), max_size=4),
)
def test_those_that_go_on_at_any_progress_send_each_update_once(
    changes: list[Update], as_of: int, frontiers: list[int], counts: list[int]
) -> None:
    """Of each but the last so many progresses are seen, and what comes behind the last of these is lost."""
    updates = valid(changes)
    whole, _ = sent(History(updates, as_of, [30]), 1, has_snapshot=True, has_progress=False)
    seen: list[Row] = []
    progress: int | None = None
    for count in (*counts, 100):
        history = History(updates, as_of if progress is None else progress - 1, [*frontiers, 30])
        rows, _ = sent(history, 10, has_snapshot=progress is None, has_progress=True)
        kept = [index for index, row in enumerate(rows) if row[1]][:count]
        if kept:
            seen += [row for row in rows[: kept[-1]] if not row[1]]
            progress = cast(int, rows[kept[-1]][0])
    assert sorted(map(repr, whole)) == sorted(repr((row[0], *row[2:])) for row in seen)


def test_a_row_that_comes_and_goes_at_one_time_is_not_sent() -> None:
    row = (1, "a")
    history = History([(5, row, 1), (5, row, -1), (6, row, 1), (6, (2, "b"), -1)], 1, [7])
    rows, _ = sent(history, 1, has_snapshot=False, has_progress=False)
    assert rows == [(6, -1, 2, "b"), (6, 1, 1, "a")]
