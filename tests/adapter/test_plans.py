"""A statement is planned once while names stand for the same, and anew as soon as they do not."""

from __future__ import annotations

from pathlib import Path

from sql_world import Client, SqlWorld

from derive.adapter.coordinator import Coordinator
from derive.adapter.parser.remembering import MOST_CHARACTERS, remembering


def test_the_same_text_has_the_same_plan_until_names_change(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one("CREATE TABLE a (id int)")
        await one("INSERT INTO a VALUES (1)")
        before = await one.session.prepare("SELECT * FROM a", ())
        assert (await other.session.prepare("SELECT * FROM a", ())).plan is before.plan
        assert (await other.session.prepare("SELECT id + $1 FROM a", (23,))).parameters == (23,)
        assert (await other.session.prepare("SELECT id + $1 FROM a", (20,))).parameters == (20,)
        assert await other("SELECT * FROM a") == [("1",)]

        await one("DROP TABLE a")
        assert await other.fails("SELECT * FROM a") == "42P01"
        await one("CREATE TABLE a (name text, id int)")
        await one("INSERT INTO a VALUES ('ann', 2)")
        assert await other("SELECT * FROM a") == [("ann", "2")]

    SqlWorld(tmp_path).within(work)


def test_errors_are_not_remembered(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client.fails("SELECT * FROM a") == "42P01"
        await client("CREATE TABLE a (id int)")
        assert await client("SELECT * FROM a") == []

    SqlWorld(tmp_path).within(work)


def test_what_a_statement_says_of_its_session_is_not_remembered(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one("PREPARE p AS SELECT 1 AS a")
        await other("PREPARE p AS SELECT 'x' AS b, 2 AS c")
        assert await one("EXECUTE p") == [("1",)]
        assert await other("EXECUTE p") == [("x", "2")]

    SqlWorld(tmp_path).within(work)


def test_only_short_texts_are_remembered() -> None:
    asked: list[str] = []

    @remembering
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    short, long = "a" * MOST_CHARACTERS, "a" * (MOST_CHARACTERS + 1)
    assert [length(text) for text in (short, short, long, long)] == [4096, 4096, 4097, 4097]
    assert asked == [short, long, long]
