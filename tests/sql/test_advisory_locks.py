"""Advisory locks: a model of who may have what, and the order in which they are given."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import SqlError
from derive.sql.transactions.advisory_locks import AdvisoryLocks

OWNERS = ("ann", "bob", "cid")


def take(locks: AdvisoryLocks, owner: str, key: int = 1, *, shared: bool = False, xact: bool = False) -> bool:
    return locks.try_lock(owner, (key,), is_shared=shared, is_of_transaction=xact)


async def wait(locks: AdvisoryLocks, owner: str, key: int = 1, *, shared: bool = False) -> None:
    await locks.lock(owner, (key,), is_shared=shared, is_of_transaction=False)


STEPS = st.tuples(
    st.sampled_from(["lock", "unlock", "end", "release"]),
    st.sampled_from(OWNERS),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(STEPS, max_size=40))
def test_locks_equal_a_model(steps: list[tuple[str, str, int, bool, bool]]) -> None:
    """The model counts who has what: nobody has a key that somebody else has, unless both share it."""
    locks = AdvisoryLocks()
    held: Counter[tuple[str, int, bool, bool]] = Counter()
    for step, owner, key, shared, xact in steps:
        others = [one for one in held if one[0] != owner and one[1] == key]
        if step == "lock":
            is_free = not others or (shared and all(other[2] for other in others))
            assert take(locks, owner, key, shared=shared, xact=xact) == is_free
            held[owner, key, shared, xact] += is_free
        elif step == "unlock":
            has = held[owner, key, shared, False] > 0
            assert locks.unlock(owner, (key,), is_shared=shared) == has
            held[owner, key, shared, False] -= has
        else:
            locks.release(owner, is_of_transaction=step == "end")
            held = Counter({one: n for one, n in held.items() if (one[0], one[3]) != (owner, step == "end")})
        held = +held


async def test_locks_are_granted_in_the_order_of_requests() -> None:
    locks = AdvisoryLocks()
    given_to: list[str] = []

    async def ask(owner: str, *, shared: bool) -> None:
        await wait(locks, owner, shared=shared)
        given_to.append(owner)

    assert take(locks, "ann", shared=True)
    requests = [asyncio.create_task(ask("bob", shared=False)), asyncio.create_task(ask("cid", shared=True))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert given_to == []  # cid could share with ann, but bob came first
    locks.release("ann", is_of_transaction=False)
    await requests[0]
    assert given_to == ["bob"]
    assert locks.unlock("bob", (1,), is_shared=False)
    await asyncio.gather(*requests)
    assert given_to == ["bob", "cid"]


async def test_cancelled_lock_requests_block_no_others() -> None:
    locks = AdvisoryLocks()
    assert take(locks, "ann", shared=True)
    first = asyncio.create_task(wait(locks, "bob"))
    second = asyncio.create_task(wait(locks, "cid", shared=True))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert not take(locks, "bob")
    locks.release("ann", is_of_transaction=False)
    locks.release("cid", is_of_transaction=False)
    assert take(locks, "bob")


async def test_deadlocks_are_reported() -> None:
    locks = AdvisoryLocks()
    assert take(locks, "ann", 1)
    assert take(locks, "bob", 2)
    first = asyncio.create_task(wait(locks, "ann", 2))
    await asyncio.sleep(0)
    with pytest.raises(SqlError, match="deadlock"):
        await wait(locks, "bob", 1)
    locks.release("bob", is_of_transaction=False)
    await first


async def test_sharers_that_both_upgrade_a_lock_deadlock() -> None:
    locks = AdvisoryLocks()
    assert take(locks, "ann", shared=True)
    assert take(locks, "bob", shared=True)
    first = asyncio.create_task(wait(locks, "ann"))
    await asyncio.sleep(0)
    with pytest.raises(SqlError, match="deadlock"):
        await wait(locks, "bob")
    assert locks.unlock("bob", (1,), is_shared=True)
    await first
