"""What psql, SQLAlchemy, asyncpg and psycopg ask by themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from patience import PATIENCE_SECONDS
from postgres_server import PASSWORD, _installation
from postgres_server import server as postgres
from psycopg.types import TypeInfo
from sql_server import served

OBJECTS = """
    CREATE TABLE orders (id bigint NOT NULL, customer text, amount numeric, at timestamptz);
    CREATE INDEX orders_by_id ON orders (id);
    CREATE MATERIALIZED VIEW totals AS SELECT customer, sum(amount) AS total FROM orders GROUP BY customer;
    CREATE VIEW large AS SELECT id FROM orders WHERE amount > 100;
    CREATE DOMAIN code AS varchar(3) DEFAULT 'AB' NOT NULL CONSTRAINT upper CHECK (VALUE = upper(VALUE));
    CREATE DOMAIN positive AS numeric(4, 1) CHECK (VALUE > 0);
    CREATE SCHEMA other;
    CREATE DOMAIN other.positive AS int;
"""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    port: int

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=flow dbname=flow"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with served(tmp_path_factory.mktemp("data")) as port:
        address = Address(port)
        with psycopg.connect(address.address, autocommit=True) as connection:
            for statement in OBJECTS.split(";")[:-1]:
                connection.execute(statement.encode())
        yield address


def psql(server: Address, text: str, *options: str) -> str:
    program = str(_installation()[1] / "psql")
    command = [program, "-X", "-A", *options, "-h", "127.0.0.1", "-p", str(server.port), "-U", "flow", "-c", text]
    environment = {"PGCONNECT_TIMEOUT": "10", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS, env=environment
    ).stdout


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("\\d", "public|large|view|flow\npublic|orders|table|flow\npublic|totals|materialized view|flow\n"),
        ("\\dt", "public|orders|table|flow\n"),
        ("\\dv", "public|large|view|flow\n"),
        ("\\dm", "public|totals|materialized view|flow\n"),
        ("\\di", "public|orders_by_id|index|flow|orders\n"),
        ("\\dn", "other|flow\npublic|flow\n"),
        (
            "\\dD",
            (
                "public|code|character varying(3)||not null|'AB'|CHECK ((VALUE = upper(VALUE)))\n"
                "public|positive|numeric(4,1)||||CHECK ((VALUE > 0))\n"
            ),
        ),
        ("\\dD other.*", "other|positive|integer||||\n"),
        ("\\dT", "public|code|\npublic|positive|\n"),
        (
            "SELECT 'positive'::regtype, 'other.positive'::regtype, 'code'::regtype::oid::regtype",
            "positive|other.positive|code\n",
        ),
        ("SELECT to_regtype('other.code'), to_regtype('nothing')", "|\n"),
        ("\\du", "flow|Superuser, Create role, Create DB\n"),
        ("\\df", ""),
        ("\\dx", ""),
        ("\\sv large", "CREATE OR REPLACE VIEW public.large AS\nSELECT id FROM orders WHERE amount > 100\n"),
    ],
)
def test_psql_describes_each_object(server: Address, command: str, output: str) -> None:
    assert psql(server, command, "-t") == output


def test_psql_describes_relations(server: Address) -> None:
    lines = psql(server, "\\d orders").splitlines()[2:]
    assert lines == [
        "id|bigint||not null|",
        "customer|text|||",
        "amount|numeric|||",
        "at|timestamp with time zone|||",
        "Indexes:",
        '    "orders_by_id" btree (id)',
    ]
    assert psql(server, "\\d orders_by_id").endswith('id|bigint|yes|id\nbtree, for table "public.orders"\n')
    assert "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer" in psql(server, "\\d+ totals")
    assert psql(server, "\\l", "-t").startswith("flow|flow|UTF8|libc|C|C|")


DESCRIBING = r"""
    d d+ dS dt dt+ dv dv+ dm dm+ di di+ ds dE dn dn+ du du+ dg df df+ dfS da dT dT+ dTS do dC dc dD db db+ l l+ dp z ddp
    dA dAc dAf dAo dAp dF dFd dFp dFt dL dL+ dO dP dRp dRs des det deu dew dx dy dconfig drds drg dX dd dfa dfn dft
"""


def test_psql_describes_everything(server: Address) -> None:
    """All commands of psql that ask about catalogs are answered, some of them also with a pattern."""
    commands = [f"\\{word}" for word in DESCRIBING.split()]
    commands += [f"\\{word}{pattern}" for word in ("d+", "dt+", "df", "dT") for pattern in (" orders*", " *.*")]
    program = str(_installation()[1] / "psql")
    command = [program, "-X", "-A", "-t", "-h", "127.0.0.1", "-p", str(server.port), "-U", "flow"]
    environment = {"PGCONNECT_TIMEOUT": "10", "PATH": "/usr/bin:/bin"}
    text = "\n".join(commands)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment, check=True
    )
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "invalid" in line]
    assert errors == []
    assert "orders_by_id" in done.stdout


def test_pg_dump_writes_what_postgresql_restores(server: Address) -> None:
    """Names need quotes, and views come before the views that they read, by their names."""
    definitions = (
        'CREATE TABLE "Dump/é" (id bigint NOT NULL, "a b" numeric(6,2) DEFAULT 1.5, t text, l int[], d double precision)',
        'CREATE INDEX "Dump idx" ON "Dump/é" ("a b", id)',
        'CREATE VIEW dump_b AS SELECT id, "a b" FROM "Dump/é" WHERE id > 1',
        "CREATE MATERIALIZED VIEW dump_a AS SELECT count(*) AS n FROM dump_b",
        "CREATE TABLE dump_keys (a int UNIQUE, b text DEFAULT 'x', c int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE dump_keys ADD CONSTRAINT pk PRIMARY KEY (b, a), ADD CHECK (a > 0)",
        "INSERT INTO dump_keys (a) VALUES (1), (2)",
        "CREATE SEQUENCE dump_numbers START 5",
        "CREATE TABLE dump_numbered (a bigint DEFAULT nextval('dump_numbers'))",
        "INSERT INTO dump_numbered VALUES (DEFAULT), (DEFAULT)",
        "CREATE TABLE dump_serial (a serial PRIMARY KEY, b smallint GENERATED ALWAYS AS IDENTITY (START 9 INCREMENT 2))",
        "INSERT INTO dump_serial SELECT FROM generate_series(1, 3)",
        'ALTER TABLE dump_serial RENAME TO "Dump serial"',
        'ALTER TABLE "Dump serial" ADD c bigint GENERATED BY DEFAULT AS IDENTITY',
    )
    insert = r"""INSERT INTO "Dump/é" VALUES (1, 2, E'\t\\N', '{1,NULL}', '-0'), (2, NULL, NULL, NULL, 'NaN')"""
    drops = (
        'DROP MATERIALIZED VIEW dump_a; DROP VIEW dump_b; DROP TABLE "Dump/é", dump_keys, dump_numbered, "Dump serial"'
    )
    drops += "; DROP SEQUENCE dump_numbers"
    of_keys = "WHERE conrelid = 'dump_keys'::regclass AND contype <> 'n' ORDER BY 1"
    queries = (
        'SELECT * FROM "Dump/é" ORDER BY id',
        "SELECT * FROM dump_b",
        "SELECT * FROM dump_a",
        "SELECT * FROM dump_keys ORDER BY a",
        "SELECT max(a) FROM dump_numbered",
        "SELECT last_value, is_called FROM dump_numbers",
        "SELECT nextval('dump_numbers')",
        'INSERT INTO "Dump serial" DEFAULT VALUES RETURNING *',
        """SELECT pg_get_serial_sequence('"Dump serial"', 'a'), pg_get_serial_sequence('"Dump serial"', 'c')""",
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = '\"Dump serial\"'::regclass",
        "SELECT attidentity FROM pg_attribute WHERE attrelid = '\"Dump serial\"'::regclass AND attnum > 0 ORDER BY attnum",
        f"SELECT conname FROM pg_constraint {of_keys}",
    )
    here = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "flow", "-d", "flow"]
    there = ["-h", "127.0.0.1", "-p", str(postgres().port), "-U", "postgres", "-d", "restored"]

    def called(program: str, *options: str, text: bytes = b"") -> bytes:
        command = [str(_installation()[1] / program), *options]
        environment = {"PATH": "/usr/bin:/bin", "PGPASSWORD": PASSWORD}
        return subprocess.run(
            command, input=text, capture_output=True, check=True, timeout=PATIENCE_SECONDS, env=environment
        ).stdout

    restore = ("-X", "-q", "-v", "ON_ERROR_STOP=1")
    with psycopg.connect(server.address, autocommit=True) as ours, postgres().connect() as theirs:
        for text in (*definitions, insert):
            ours.execute(text.encode())
        theirs.execute("CREATE DATABASE restored")
        try:
            called("psql", *restore, *there, text=called("pg_dump", "-O", *here))
            with postgres().connect(dbname="restored") as restored:
                for query in queries:
                    assert str(restored.execute(query).fetchall()) == str(ours.execute(query).fetchall())
                ours.execute(drops)
                called("psql", *restore, *here, text=called("pg_dump", "-O", "-t", "*ump*", *there))
                for query in queries:
                    assert str(restored.execute(query).fetchall()) == str(ours.execute(query).fetchall())
        finally:
            theirs.execute("DROP DATABASE restored")
        ours.execute(drops)


ORIGINS = (
    "SELECT * FROM origin_t",
    "SELECT b, a AS other, a + 1, 1, o.a FROM origin_t o WHERE a > 1 ORDER BY c LIMIT 1",
    "SELECT x.c, y.a FROM origin_t x JOIN origin_t y USING (a)",
    "SELECT a, x.b, y.d FROM origin_t x LEFT JOIN origin_u y USING (a)",
    "SELECT * FROM origin_v",
    "SELECT n, m FROM origin_v v, origin_w w",
    "SELECT s.k, s.b FROM (SELECT a AS k, b, c || 'x' FROM origin_t) s",
    "WITH w AS (SELECT a, b FROM origin_t) SELECT b FROM w",
    "SELECT a, count(*), max(b) FROM origin_t GROUP BY a",
    "SELECT DISTINCT b FROM origin_t",
    "SELECT b, row_number() OVER (ORDER BY a), sum(a) OVER () FROM origin_t",
    "SELECT a FROM origin_t UNION ALL SELECT a FROM origin_u",
    "SELECT (SELECT a FROM origin_u LIMIT 1), coalesce(b, 1) FROM origin_t",
    "VALUES (1, 2)",
    "SELECT g FROM generate_series(1, 2) g",
)


def test_results_name_the_tables_of_their_columns(server: Address) -> None:
    definitions = (
        "CREATE TABLE origin_t (a int PRIMARY KEY, b int, c text)",
        "CREATE TABLE origin_u (d text, a int)",
        "CREATE VIEW origin_v AS SELECT c, b AS n, a + 1 AS p FROM origin_t",
        "CREATE VIEW origin_w AS SELECT p AS m FROM origin_v",
        *(f"INSERT INTO origin_{letter} (a) VALUES (1), (2)" for letter in "tu"),
    )

    def origins(connection: psycopg.Connection[Any], query: str) -> list[tuple[str | None, int]]:
        result = connection.execute(query.encode()).pgresult
        assert result
        named = "SELECT relname FROM pg_class WHERE oid = %s"
        return [
            (next((name for (name,) in connection.execute(named, (result.ftable(at),))), None), result.ftablecol(at))
            for at in range(result.nfields)
        ]

    with psycopg.connect(server.address, autocommit=True) as ours, postgres().connect() as theirs:
        for connection in (ours, theirs):
            for text in definitions:
                connection.execute(text.encode())
        try:
            for query in ORIGINS:
                assert (query, origins(ours, query)) == (query, origins(theirs, query))
        finally:
            for connection in (ours, theirs):
                connection.execute("DROP TABLE origin_t, origin_u CASCADE")


@pytest.mark.parametrize("driver", ["psycopg", "pg8000"])
def test_sqlalchemy_reflects_tables_and_views(server: Address, driver: str) -> None:
    address = f"postgresql+{driver}://flow@127.0.0.1:{server.port}/flow"
    engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        reflect(connection)


def reflect(connection: sqlalchemy.Connection) -> None:
    inspector = sqlalchemy.inspect(connection)
    assert inspector.get_table_names() == ["orders"]
    assert inspector.get_view_names() == ["large"]
    assert inspector.get_materialized_view_names() == ["totals"]
    assert [
        (column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns("orders")
    ] == [("id", "BIGINT", False), ("customer", "TEXT", True), ("amount", "NUMERIC", True), ("at", "TIMESTAMP", True)]
    assert inspector.get_pk_constraint("orders")["constrained_columns"] == []
    assert inspector.get_foreign_keys("orders") == []
    assert [index["column_names"] for index in inspector.get_indexes("orders")] == [["id"]]
    assert inspector.get_table_comment("orders") == {"text": None}
    assert inspector.get_view_definition("large") == "SELECT id FROM orders WHERE amount > 100;"
    tables = sqlalchemy.MetaData()
    tables.reflect(connection, views=True)
    assert sorted(tables.tables) == ["large", "orders", "totals"]


async def test_asyncpg_looks_types_up(server: Address) -> None:
    connection = await asyncpg.connect(host="127.0.0.1", port=server.port, user="flow", database="flow")
    try:
        await connection.set_type_codec("jsonb", encoder=str, decoder=str, schema="pg_catalog")
        rows = await connection.fetch(
            "SELECT oid, relkind FROM pg_class WHERE relname = any($1) AND oid > $2", ["orders"], 5
        )
        assert [tuple(row) for row in rows] == [(16385, b"r")]
        assert await connection.fetchval("SELECT indkey FROM pg_index") == [1]
        assert await connection.fetchval("SELECT array_agg(nspname ORDER BY nspname) FROM pg_namespace") == [
            "information_schema",
            "other",
            "pg_catalog",
            "public",
        ]
    finally:
        await connection.close()


def test_psycopg_looks_types_up(server: Address) -> None:
    with psycopg.connect(server.address, autocommit=True) as connection:
        info = TypeInfo.fetch(connection, "jsonb")
        assert info is not None
        assert (info.oid, info.array_oid) == (3802, 3807)
        assert TypeInfo.fetch(connection, "hstore") is None
