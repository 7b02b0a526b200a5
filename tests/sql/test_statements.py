"""SUBSCRIBE, COPY, cursors, prepared statements, EXPLAIN and SHOW."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from sql_world import Client, SqlWorld, ingest

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.types.pg_type import OID_OF, PG_TYPES, type_of_oid
from derive.sql.coordinator import Coordinator

Row = tuple[str | None, ...]


class Follower:
    """A cursor over a subscription, fetched until all is there that is expected."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rows: list[Row] = []

    async def begin(self, statement: str) -> None:
        await self._client("BEGIN")
        await self._client(f"DECLARE c CURSOR FOR {statement}")

    async def contents(self, expected: Counter[Row]) -> None:
        """Fetch until updates come to these rows."""
        while self.current() != expected:
            self.rows += await self._client("FETCH ALL c WITH (TIMEOUT = '50ms')")

    def current(self) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for _, diff, *row in self.rows:
            counts[tuple(row)] += int(diff or 0)
        return +counts


async def test_subscriptions_send_updates(coordinator: Coordinator) -> None:
    client, follower = Client(coordinator), Follower(Client(coordinator))
    ingest(coordinator, [(1, "ann", 10.0)])
    await client.script("CREATE TABLE names (customer text, name text); INSERT INTO names VALUES ('ann', 'Ann')")
    query = 'SELECT name, sum(amount) FROM "shop/orders" JOIN names USING (customer) GROUP BY name'
    await follower.begin(f"SUBSCRIBE ({query})")
    await follower.contents(Counter({("Ann", "10"): 1}))
    ingest(coordinator, [(2, "ann", 1.0)])
    await follower.contents(Counter({("Ann", "11"): 1}))
    await client("INSERT INTO names VALUES ('ann', 'Anna')")
    await follower.contents(Counter({("Ann", "11"): 1, ("Anna", "11"): 1}))
    await client("DELETE FROM names")
    await follower.contents(Counter())
    times = [int(row[0] or 0) for row in follower.rows]
    assert times == sorted(times)
    assert await client.fails("SUBSCRIBE (SELECT now())") == "0A000"


async def test_a_subscription_continues_where_another_has_ended(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)")
        until = coordinator.timeline.latest + 1
        rows = await client(f"SUBSCRIBE t WITH (PROGRESS) UP TO {until}")
        assert Counter(row[3] for row in rows if row[1] == "f") == Counter(["1", "2"])
        assert rows[-1][:2] == (str(until), "t")
        await client.script("INSERT INTO t VALUES (3); DELETE FROM t WHERE a = 1")
    async with world.served() as (coordinator, client):
        await client("INSERT INTO t VALUES (4)")
        last = coordinator.timeline.latest + 1
        rows = await client(f"SUBSCRIBE t WITH (SNAPSHOT = false) AS OF {until - 1} UP TO {last}")
        assert [row[1:] for row in rows] == [("1", "3"), ("-1", "1"), ("1", "4")]


async def progressed(client: Client, progress: int | None, until: Counter[Row]) -> tuple[int, Counter[Row]]:
    """Go on from a progress until some updates have come, and then up to a progress; what is behind it is lost."""
    rest = ") " if progress is None else f", SNAPSHOT = false) AS OF {progress - 1}"
    await client.script(f"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS{rest}")
    updates: Counter[Row] = Counter()
    while True:
        for time, is_progress, *update in await client("FETCH 1 c WITH (TIMEOUT = '60s')"):
            if is_progress == "f":
                updates[tuple(update)] += 1
            elif updates >= until:
                await client("ROLLBACK")
                return int(time or 0), updates


async def test_a_subscription_continues_from_any_progress(world: SqlWorld) -> None:
    """With one server after the other: each update comes once, also where only the first progress was seen."""
    seen: Counter[Row] = Counter()
    progress: int | None = None
    servers: list[tuple[str, Counter[Row]]] = [
        ("INSERT INTO t VALUES (1), (1), (2)", Counter()),
        ("INSERT INTO t VALUES (3)", Counter()),
        ("DELETE FROM t WHERE a = 2", Counter([("-1", "2")])),
        ("INSERT INTO t VALUES (4)", Counter()),
        ("INSERT INTO t VALUES (5)", Counter([("1", "4"), ("1", "5")])),
    ]
    for change, until in servers:
        async with world.served() as (_, client):
            if progress is None:
                await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (0)")
            await client(change)
            progress, updates = await progressed(client, progress, until)
        seen += updates

    assert seen == Counter([("1", "0"), ("2", "1"), ("1", "2"), ("1", "3"), ("-1", "2"), ("1", "4"), ("1", "5")])


async def test_subscription_can_be_cancelled(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    running = asyncio.create_task(client("SUBSCRIBE t"))
    while not running.done():
        await asyncio.sleep(0.05)
        client.session.cancel()
    with pytest.raises(SqlError) as failure:
        await running
    assert failure.value.sqlstate == "57014"
    assert await client("SELECT * FROM t") == []


async def test_copy_writes_and_reads_rows(client: Client) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"1\tone\n2\t", b"\\N\n"):
            yield piece

    await client("CREATE TABLE t (a int, b text, c int)")
    prepared = await client.session.prepare("COPY t (a, b) FROM STDIN", ())
    result = await client.session.execute(prepared, ())
    assert result.copy_in
    assert await result.copy_in(pieces()) == 2
    await client.session.end_implicit()
    assert await client("SELECT * FROM t ORDER BY a") == [("1", "one", None), ("2", None, None)]

    prepared = await client.session.prepare("COPY (SELECT a, b FROM t ORDER BY a) TO STDOUT WITH CSV", ())
    result = await client.session.execute(prepared, ())
    assert result.copy_out
    assert result.rows
    lines = [line async for rows in result.rows for line in result.copy_out.lines(rows)]
    assert lines == [b"1,one\n", b"2,\n"]

    prepared = await client.session.prepare("COPY (SELECT FROM t) TO STDOUT", ())
    result = await client.session.execute(prepared, ())
    assert result.copy_out
    assert result.rows
    assert [line async for rows in result.rows for line in result.copy_out.lines(rows)] == [b"\n", b"\n"]


async def test_cursors_fetch_rows(client: Client) -> None:
    assert await client.fails("DECLARE c CURSOR FOR SELECT 1") == "25P01"
    await client.script("BEGIN; DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 5)")
    assert await client("FETCH 2 FROM c") == [("1",), ("2",)]
    assert await client("FETCH c") == [("3",)]
    assert await client("FETCH ALL FROM c") == [("4",), ("5",)]
    assert await client("FETCH c") == []
    assert await client.tag("CLOSE c") == "CLOSE CURSOR"
    assert await client.fails("FETCH c") == "34000"


async def test_prepared_statements_are_executed(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    await client("PREPARE adding (int) AS INSERT INTO t VALUES ($1), ($1 + 1)")
    await client("PREPARE counting AS SELECT count(*) FROM t WHERE a > $1")
    assert await client.tag("EXECUTE adding (4)") == "INSERT 0 2"
    assert await client("EXECUTE counting (4)") == [("1",)]
    assert await client.fails("EXECUTE counting") == "42601"
    await client("DEALLOCATE counting")
    assert await client.fails("EXECUTE counting (1)") == "26000"


async def test_explain_and_show_list_objects(client: Client) -> None:
    await client.script("CREATE TABLE t (a int NOT NULL); CREATE VIEW v AS SELECT a FROM t; CREATE INDEX i ON t (a)")
    await client.script("CREATE UNIQUE INDEX j ON t (a, (a % 2)) WHERE a > 0")

    assert any("t" in (line or "") for (line,) in await client("EXPLAIN SELECT a, count(*) FROM t GROUP BY a"))
    assert (await client("EXPLAIN TIMESTAMP FOR SELECT * FROM t"))[0][0]
    assert await client("SHOW TABLES") == [("t",)]
    assert await client("SHOW VIEWS") == [("v",)]
    assert await client("SHOW INDEXES") == [("i", "t", "a"), ("j", "t", "a, a % 2")]
    assert await client("SHOW INDEXES FROM v") == []
    assert await client("SHOW COLUMNS FROM t") == [("a", "f", "integer")]
    assert ("shop/orders", "collection") in await client("SHOW OBJECTS")


async def test_show_tables_notes_that_collections_are_not_listed(client: Client) -> None:
    for what, hint in (("TABLES", ["SHOW OBJECTS lists tables, views and collections."]), ("VIEWS", [])):
        prepared = await client.session.prepare(f"SHOW {what}", ())
        await client.session.begin_implicit()
        assert [notice.hint for notice in (await client.session.execute(prepared, ())).notices] == hint
        await client.session.end_implicit()


async def test_outdated_plans_are_refused(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    prepared = await client.session.prepare("SELECT * FROM t", ())
    await client.script("ALTER TABLE t RENAME TO u; CREATE TABLE t (a text)")
    with pytest.raises(SqlError) as failure:
        await client.session.execute(prepared, ())
    assert failure.value.sqlstate == "0A000"


async def test_statements_of_tools_are_accepted(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    await client("CREATE MATERIALIZED VIEW m AS SELECT sum(a) FROM t")
    await client("CREATE VIEW v AS SELECT 1")
    assert await client("SHOW MATERIALIZED VIEWS") == [("m",)]
    assert await client.tag("CREATE SCHEMA IF NOT EXISTS public") == "CREATE SCHEMA"
    assert await client.fails("CREATE SCHEMA public") == "42P06"
    assert await client.fails("DROP SCHEMA public") == "0A000"
    plain = await client("EXPLAIN SELECT a FROM t")
    for form in ("VERBOSE", "(COSTS OFF, FORMAT TEXT)", "(ANALYZE false, VERBOSE)"):
        assert await client(f"EXPLAIN {form} SELECT a FROM t") == plain
    assert await client("EXPLAIN (SELECT a FROM t)") == plain


async def test_a_locked_table_fails_the_transaction_if_another_session_drops_it(coordinator: Coordinator) -> None:
    ann, ben = Client(coordinator), Client(coordinator)
    await ann.script("CREATE TABLE t (a int)", "CREATE TABLE u (a int)", "CREATE VIEW v AS SELECT a FROM u")
    for locked, before in (("t", ()), ("ONLY t *, u", ("INSERT INTO u VALUES (1)",)), ("v, t", ())):
        await ann("BEGIN")
        assert await ann.tag(f"LOCK TABLE {locked} IN ACCESS SHARE MODE") == "LOCK TABLE"
        await ben("DROP TABLE t")
        await ann.script(*before)
        assert await ann.fails("COMMIT") == "40001"
        await ben("CREATE TABLE t (a int)")
    await ann("BEGIN")
    await ann("LOCK t IN ACCESS SHARE MODE")
    await ben("DROP TABLE t")
    assert await ann.fails("SELECT a FROM u") == "40001"
    await ann("ROLLBACK")
    assert await ann("SELECT a FROM u") == []


async def test_a_locked_table_can_be_written_and_altered_by_its_transaction(coordinator: Coordinator) -> None:
    ann, ben = Client(coordinator), Client(coordinator)
    await ann("CREATE TABLE t (a int)")
    for text in (
        "BEGIN READ WRITE",
        "LOCK t IN ACCESS SHARE MODE NOWAIT",
        "CREATE TABLE own (a int)",
        "LOCK TABLE own, pg_class IN ACCESS SHARE MODE",
        "ALTER TABLE t ADD COLUMN b int",
        "INSERT INTO t VALUES (1, 2)",
    ):
        await ann(text)
    await ann("COMMIT")
    await ann("BEGIN")
    await ann("LOCK t IN ACCESS SHARE MODE")
    await ben("INSERT INTO t VALUES (0)")
    await ann("INSERT INTO t VALUES (2)")
    await ann("COMMIT")
    assert sorted(await ann("SELECT a FROM t")) == [("0",), ("1",), ("2",)]


async def test_lock_table_refuses_relations_as_postgresql_does(client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    await client("CREATE INDEX i ON t (a)")
    await client("CREATE MATERIALIZED VIEW m AS SELECT a FROM t")
    assert await client.fails("LOCK TABLE t IN ACCESS SHARE MODE") == "25P01"
    for text, sqlstate in (
        ("LOCK TABLE nothing IN ACCESS SHARE MODE", "42P01"),
        ("LOCK TABLE i IN ACCESS SHARE MODE", "42809"),
        ("LOCK TABLE m IN ACCESS SHARE MODE", "42809"),
        ("LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE", "0A000"),
        ("LOCK TABLE t", "0A000"),
        ("LOCK TABLE t IN NO MODE", "42601"),
    ):
        await client("BEGIN")
        assert await client.fails(text) == sqlstate
        await client("ROLLBACK")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN TIMESTAMP"),
        ("EXPLAIN (ANALYZE, FORMAT TEXT) SELECT 1", "EXPLAIN TIMESTAMP"),
        ("LOCK TABLE t IN EXCLUSIVE MODE", "40001"),
        ("COMMENT ON ROLE t IS 'x'", "tables, views"),
        ("SELECT * FROM (WITH x AS (DELETE FROM t RETURNING a) SELECT * FROM x) y", "Write WITH at the start"),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x'", "Write the function in SQL"),
        ("CREATE ROLE r", "A password file"),
        ("SELECT '1'::xml", "Use text"),
    ],
)
def test_unsupported_statements_have_hints(world: SqlWorld, text: str, hint: str) -> None:
    with pytest.raises(SqlError) as raised:
        world.script(text)

    assert raised.value.sqlstate == "0A000"
    assert raised.value.hint
    assert hint in raised.value.hint


async def test_misspelt_names_get_suggestions(client: Client) -> None:
    await client.script("CREATE TABLE orders (a int); CREATE VIEW spent AS SELECT a FROM orders")
    for text, sqlstate, hint in (
        ("SHOW REPLICA", "42704", "Did you mean replicas?"),
        ("SHOW transacton_isolation", "42704", "Did you mean transaction_isolation?"),
        ("DROP TABLE ordres", "42P01", 'Did you mean "orders"?'),
        ("DROP VIEW ordres", "42P01", None),
        ("ALTER TABLE order_s RENAME TO x", "42P01", 'Did you mean "orders"?'),
    ):
        error = await client.error(text)
        assert (error.sqlstate, error.hint) == (sqlstate, hint)


async def test_each_row_has_a_random_identifier_of_its_own(client: Client) -> None:
    await client(
        "CREATE TABLE t (id uuid NOT NULL DEFAULT gen_random_uuid(), old text DEFAULT gen_random_uuid(), a int)"
    )
    await client("INSERT INTO t (a) VALUES (1), (2), (3)")

    ids = {id_ for row in await client("SELECT id, old FROM t") for id_ in row if id_}
    assert len(ids) == 6
    assert all(uuid.UUID(id_).version == 4 for id_ in ids)
    assert await client.fails("CREATE MATERIALIZED VIEW v AS SELECT gen_random_uuid() FROM t") == "0A000"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SELECT * FROM shop.orders", 'Did you mean "shop/orders"?'),
        ("SELECT * FROM orders", 'Did you mean "shop/orders"?'),
        ('SELECT * FROM "shop/orders" WHERE customer = "Ann"', "A text is in single quotes: 'Ann'."),
        ('SELECT * FROM "shop/orders" WHERE customer = "fr"', "A text is in single quotes: 'fr'."),
        (
            "SELECT datetime('now')",
            "now() returns the present time, and '2024-05-01 09:00'::timestamp a written time.",
        ),
        ('SELECT "Customer" FROM "shop/orders"', 'Did you mean "customer"?'),
        ('SELECT coun(*) FROM "shop/orders"', "Did you mean count?"),
    ],
)
async def test_common_mistakes_get_hints(text: str, hint: str, coordinator: Coordinator) -> None:
    assert (await Client(coordinator).error(text)).hint == hint


async def test_functions_of_common_tools_are_supported(coordinator: Coordinator) -> None:
    hint = (await Client(coordinator).error("SELECT * FROM generate_serie(1, 2)")).hint
    assert str(hint).startswith("Did you mean generate_series? ")


# Types as PostgreSQL's clients know them.


def test_types_all_have_an_oid() -> None:
    forms = {kind: type_of_oid(oid) for kind, oid in OID_OF.items()}

    assert set(forms) == set(Type)
    # A clock is told as a bigint, and what nothing has decided is text.
    assert {kind: form for kind, form in forms.items() if form is not kind} == {
        Type.MZ_TIMESTAMP: Type.BIGINT,
        Type.UNKNOWN: Type.TEXT,
    }


def test_arrays_name_their_elements() -> None:
    arrays = {
        pg_type.name: PG_TYPES[pg_type.element].name
        for pg_type in PG_TYPES.values()
        if pg_type.element and pg_type.name[0] == "_"
    }

    assert arrays["_int4"] == "int4"
    assert all(array == f"_{element}" for array, element in arrays.items())


def test_unknown_oids_have_no_type() -> None:
    assert type_of_oid(0) is None
    assert type_of_oid(999_999) is None


async def test_with_writes_reads_collections_in_transaction_blocks_only(client: Client) -> None:
    await client.script("CREATE TABLE kept (n bigint); CREATE TABLE k2 (n bigint)")
    text = (
        'WITH d AS (INSERT INTO kept SELECT count(*) FROM "shop/orders" RETURNING n)'
        ' SELECT d.n = count(*) FROM d, "shop/orders" GROUP BY d.n'
    )
    assert await client.fails(text) == "0A000"
    await client("BEGIN")
    await client(text)
    await client("COMMIT")
    assert len(await client("TABLE kept")) == 1


async def test_with_writes_keeps_all_or_nothing(client: Client) -> None:
    await client.script("CREATE TABLE a (k int PRIMARY KEY); CREATE TABLE b (k int PRIMARY KEY)")
    await client("INSERT INTO b VALUES (2)")
    text = "WITH d AS (INSERT INTO a VALUES (1), (2) RETURNING k) INSERT INTO b SELECT k FROM d"
    assert await client.fails(text) == "23505"
    assert await client("TABLE a") == []
    assert await client.fails("WITH d AS (INSERT INTO a VALUES (7) RETURNING k) SELECT 1 / (k - 7) FROM d") == "22012"
    assert await client("TABLE a") == []
