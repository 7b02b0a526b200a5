"""Runs that are killed in the midst of a refill: the tables come to hold what the collections hold, and no more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_client import FENCED, CrashServer, crash_server
from refilled import VIEW, Shop
from sql_databases import DATABASES

from derive.materialize.streams import close_streams

WAKING = ["refill.applied:1", "refill.completing:1", "refill.completed:1", "materialize.committing:3"]
"""Failpoints at which a run is paused until another one has superseded it."""
KILLS = [
    "refill.applied:1",
    "refill.applied:2",
    "refill.completing:1",
    "refill.completed:1",
    *(f"materialize.committing:{times}" for times in (1, 3, 6)),
    *(f"materialize.committed:{times}" for times in (1, 3, 6)),
    *(f"metadata.committing:{times}" for times in (2, 4, 7)),
    *(f"metadata.committed:{times}" for times in (2, 4, 7)),
]


@pytest.fixture(scope="module")
def server() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """One whose sums are to be stored anew, as fewer keys are left of them; a parameter names the database."""
    name = getattr(request, "param", "sqlite")
    database = DATABASES[name](tmp_path)
    shop = Shop(tmp_path, database, {"connector": {"image": f"materialize-{name}", "config": database.config}})
    shop.ingest(*[(f"k{number}", 10 * number) for number in range(12)])
    shop.world.step(shards=2)
    close_streams()
    shop.check()
    shop.edit(LEAST="60")
    shop.reset("shop/sums")
    yield shop
    shop.close()


def do(server: CrashServer, shop: Shop, what: str, *arguments: object, failpoint: str = "") -> int:
    world = shop.world
    world.wall += 10_000_000
    order = {"source": str(shop.folder / "flow.yaml"), "data": str(world.root), "wall": world.wall}
    return server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)


def finish(server: CrashServer, shop: Shop) -> None:
    """Run to the end, and see that what comes later is stored where it belongs."""
    assert do(server, shop, "run", 2, 3) == 0
    shop.check()
    assert shop.others() == []
    shop.ingest(("k1", 100), ("k11", 1))
    assert do(server, shop, "run", 2, 3) == 0
    shop.check()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("failpoint", KILLS)
def test_a_refill_may_be_killed_anywhere(failpoint: str, server: CrashServer, shop: Shop) -> None:
    before = shop.rows()
    assert do(server, shop, "run", 2, 3, failpoint=failpoint) in (0, -signal.SIGKILL)
    assert shop.rows() in (before, shop.contents(), {key: value for key, value in before.items() if value >= 60})
    finish(server, shop)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failpoint", KILLS)
@pytest.mark.parametrize("shop", ["duckdb", "postgres"], indirect=True)
def test_a_refill_may_be_killed_over_each_database(failpoint: str, server: CrashServer, shop: Shop) -> None:
    test_a_refill_may_be_killed_anywhere(failpoint, server, shop)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", WAKING)
@pytest.mark.parametrize("shop", ["duckdb", "postgres"], indirect=True)
def test_a_superseded_run_does_no_harm_over_each_database(failpoint: str, server: CrashServer, shop: Shop) -> None:
    assert do(server, shop, "run", 2, 3, failpoint=f"{failpoint}:pause") == -signal.SIGSTOP
    assert do(server, shop, "reset", VIEW) == 0
    shop.ingest(("k7", 5))
    assert do(server, shop, "run", 2, 3) == 0
    shop.check()
    assert do(server, shop, "resume") in (1, FENCED)
    finish(server, shop)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", [("reset", VIEW), ("reset", "shop/sums"), ("split", VIEW, 4)])
@pytest.mark.parametrize(
    "failpoint", ["refill.applied:1", "materialize.committed:3", "refill.completing", "refill.completed"]
)
def test_something_else_happens_to_a_refill_that_was_killed(
    what: tuple[str, ...], failpoint: str, server: CrashServer, shop: Shop
) -> None:
    assert do(server, shop, "run", 2, 3, failpoint=failpoint) == -signal.SIGKILL
    assert do(server, shop, *what) == 0
    finish(server, shop)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("failpoint", WAKING)
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_run_that_was_superseded_does_no_harm_when_it_wakes(
    failpoint: str, server: CrashServer, shop: Shop, *, is_reset: bool
) -> None:
    """It is paused, and another run completes the refill, or one of a later reset, before it goes on."""
    assert do(server, shop, "run", 2, 3, failpoint=f"{failpoint}:pause") == -signal.SIGSTOP
    if is_reset:
        assert do(server, shop, "reset", VIEW) == 0
        shop.ingest(("k7", 5))
    assert do(server, shop, "run", 2, 3) == 0
    shop.check()
    assert do(server, shop, "resume") in (1, FENCED)
    shop.check()
    finish(server, shop)


def test_a_late_completion_does_not_complete_a_refill_that_began_again(server: CrashServer, shop: Shop) -> None:
    """A run is paused before the completion of a refill, which another run drops and begins again."""
    before = shop.rows()
    assert do(server, shop, "run", 2, 3, failpoint="refill.completing:1:pause") == -signal.SIGSTOP
    (beside,) = shop.others()
    shop.database.query(f'DROP TABLE "{beside}"')
    assert do(server, shop, "run", 2, 3, failpoint="materialize.committed:2") == -signal.SIGKILL
    assert shop.others() not in ([], [beside])
    assert do(server, shop, "resume") in (1, FENCED)
    assert shop.rows() == before
    finish(server, shop)
