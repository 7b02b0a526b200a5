"""A statement is planned once while names stand for the same, and anew as soon as they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sql_world import Client

from derive.algebra.relation import Relation
from derive.recently_used import MOST_CHARACTERS, RecentlyUsed, cached_by_text
from derive.sql.coordinator import Coordinator


async def test_the_same_text_has_the_same_plan_until_names_change(coordinator: Coordinator) -> None:
    one, other = Client(coordinator), Client(coordinator)
    await one.script("CREATE TABLE a (id int); INSERT INTO a VALUES (1)")
    before = await one.session.prepare("SELECT * FROM a", ())
    assert (await other.session.prepare("SELECT * FROM a", ())).plan is before.plan
    assert (await other.session.prepare("SELECT id + $1 FROM a", (23,))).parameters == (23,)
    assert (await other.session.prepare("SELECT id + $1 FROM a", (20,))).parameters == (20,)
    assert await other("SELECT * FROM a") == [("1",)]

    await one("DROP TABLE a")
    assert await other.fails("SELECT * FROM a") == "42P01"
    await one.script("CREATE TABLE a (name text, id int); INSERT INTO a VALUES ('ann', 2)")
    assert await other("SELECT * FROM a") == [("ann", "2")]


async def test_ddl_transaction_keeps_plans_of_other_sessions(coordinator: Coordinator) -> None:
    """An open DDL transaction lets 200 statements of another session reuse their plans."""
    defining, other, third = (Client(coordinator) for _ in range(3))
    await other("CREATE TABLE a (id int)")
    text = "SELECT * FROM a"
    plans = []
    for client, name in ((defining, "b"), (third, "c")):
        await client.script(f"BEGIN; CREATE TABLE {name} (id int)")
    before = [(await client.session.prepare(text, ())).plan for client in (defining, other, third)]
    for _ in range(20):
        plans.append([(await client.session.prepare(text, ())).plan for client in (defining, other, third)])
    assert all(now is then for row in plans for now, then in zip(row, before, strict=True))
    assert await defining.fails("SELECT * FROM c") == "42P01"


async def test_view_is_planned_again_only_after_a_change_of_what_it_reads(coordinator: Coordinator) -> None:
    client = Client(coordinator)
    await client.script("CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE VIEW of_a AS SELECT id FROM a")
    await client.script("CREATE VIEW over AS SELECT id FROM of_a; CREATE VIEW of_b AS SELECT id FROM b")

    def planned() -> dict[str, Relation]:
        objects = coordinator.objects
        return {item.name: objects.meaning(item) for item in objects.items.values() if item.definition}

    before = planned()
    await client("CREATE TABLE c (id int)")
    assert all(relation is before[name] for name, relation in planned().items())
    await client("ALTER TABLE a RENAME TO d")
    assert {name for name, relation in planned().items() if relation is before[name]} == {"of_b"}

    await client("CREATE INDEX i ON of_a (id)")
    assert await client("EXPLAIN SELECT id FROM over") == [("read of_a",)]
    await client("DROP INDEX i")
    assert await client("EXPLAIN SELECT id FROM over") == [("read d",)]


async def test_frequent_statements_stay_planned(coordinator: Coordinator) -> None:
    session = Client(coordinator).session
    often = (await session.prepare("SELECT 'often'", ())).plan
    first = (await session.prepare("SELECT 'first'", ())).plan
    for number in range(1500):
        await session.prepare(f"SELECT {number}", ())
        if number % 100 == 0:
            assert (await session.prepare("SELECT 'often'", ())).plan is often
    assert (await session.prepare("SELECT 'first'", ())).plan is not first


@given(most=st.integers(1, 5), steps=st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60))
def test_cache_keeps_the_last_used_entries(most: int, steps: list[tuple[bool, int]]) -> None:
    cache: RecentlyUsed[int, str] = RecentlyUsed(most)
    used: list[int] = []
    for is_put, key in steps:
        if is_put:
            assert cache.put(key, f"v{key}") == f"v{key}"
        else:
            assert cache.get(key) == (f"v{key}" if key in used else None)
            if key not in used:
                continue
        used = [*(other for other in used if other != key), key][-most:]
        assert len(cache) == len(used)


async def test_errors_are_not_cached(client: Client) -> None:
    assert await client.fails("SELECT * FROM a") == "42P01"
    await client("CREATE TABLE a (id int)")
    assert await client("SELECT * FROM a") == []


async def test_prepared_statement_names_belong_to_one_session(coordinator: Coordinator) -> None:
    one, other = Client(coordinator), Client(coordinator)
    await one("PREPARE p AS SELECT 1 AS a")
    await other("PREPARE p AS SELECT 'x' AS b, 2 AS c")
    assert await one("EXECUTE p") == [("1",)]
    assert await other("EXECUTE p") == [("x", "2")]


def test_only_short_texts_are_cached() -> None:
    asked: list[str] = []

    @cached_by_text
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    short, long = "a" * MOST_CHARACTERS, "a" * (MOST_CHARACTERS + 1)
    assert [length(text) for text in (short, short, long, long)] == [4096, 4096, 4097, 4097]
    assert asked == [short, long, long]
