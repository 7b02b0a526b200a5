from collections import Counter as Multiset

from hypothesis import given
from hypothesis import strategies as st

from derive.sql.sources.definitions import Counter, CounterPosition


@given(st.integers(1, 50), st.none() | st.integers(1, 5), st.lists(st.integers(0, 400)))
def test_the_last_rows_are_there_however_often_it_is_asked(interval: int, most: int | None, times: list[int]) -> None:
    counter, position = Counter(interval, most), CounterPosition(0, 1_000)
    rows: Multiset[int] = Multiset()
    for now in sorted(times):
        changes, position = counter.poll(position, now + 1_000)
        for (number,), diff in changes:
            assert isinstance(number, int)
            rows[number] += diff
        count = now // interval
        first = 1 if most is None else max(1, count - most + 1)
        assert +rows == Multiset(range(first, count + 1))
        assert position.added == count
        assert counter.due(position, now + 1_000) == 1_000 + (count + 1) * interval


def test_much_that_was_missed_comes_a_part_at_a_time() -> None:
    counter, position = Counter(1), CounterPosition(0, 0)
    changes, position = counter.poll(position, 25_000)
    assert len(changes) == position.added == 10_000
    assert counter.poll(counter.poll(position, 25_000)[1], 25_000)[1] == CounterPosition(25_000, 0)
