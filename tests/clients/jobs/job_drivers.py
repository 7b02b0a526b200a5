"""psycopg, asyncpg, ADBC, polars and pgcli. PG* of the environment name the server."""

import asyncio
import os
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import adbc_driver_postgresql.dbapi
import asyncpg
import polars
import psycopg
import pyarrow
from psycopg.rows import class_row, dict_row, namedtuple_row
from psycopg.types.json import Jsonb
from same import same

KEY = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
AT = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ROW = (1, "ann", Decimal("1.5"), AT, date(2024, 1, 2), timedelta(days=1), KEY, [1, None], b"\x00x", 1.5, True)
COLUMNS = "i int, s text, n numeric, at timestamptz, d date, v interval, u uuid, a int[], b bytea, f float8, t bool"


def with_psycopg() -> None:
    with psycopg.connect("") as connection:
        connection.execute("DROP TABLE IF EXISTS dr")
        connection.execute(f"CREATE TABLE dr ({COLUMNS}, j jsonb)")
        connection.execute("INSERT INTO dr VALUES (" + ", ".join(["%s"] * 12) + ")", (*ROW, Jsonb({"a": 1})))
        for binary in (False, True):
            with connection.cursor(binary=binary) as cursor:
                same(cursor.execute("SELECT * FROM dr").fetchall(), [(*ROW, {"a": 1})])
        with connection.cursor(row_factory=dict_row) as cursor:
            same(cursor.execute("SELECT i, s FROM dr WHERE s = ANY(%s)", (["ann"],)).fetchone(), {"i": 1, "s": "ann"})
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            same(cursor.execute("SELECT i AS one FROM dr").fetchone().one, 1)
        with connection.cursor(row_factory=class_row(dict)) as cursor:
            same(cursor.execute("SELECT 1 AS x").fetchall(), [{"x": 1}])
        with connection.cursor("named", scrollable=False) as cursor:
            cursor.execute("SELECT generate_series(1, 10)")
            same([row[0] for row in cursor], list(range(1, 11)))
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO dr (i) VALUES (%s) RETURNING i", [(at,) for at in (2, 3)], returning=True)
            same([cursor.fetchone(), cursor.nextset(), cursor.fetchone()], [(2,), True, (3,)])
            with cursor.copy("COPY dr (i, s) FROM STDIN (FORMAT binary)") as copy:
                copy.set_types(["int4", "text"])
                copy.write_row((4, "copied"))
            with cursor.copy("COPY (SELECT i, s FROM dr WHERE i = 4) TO STDOUT") as copy:
                same(list(copy.rows()), [("4", "copied")])
        with connection.pipeline():
            cursors = [connection.execute("SELECT %s::int", (at,)) for at in range(3)]
            same([cursor.fetchone()[0] for cursor in cursors], [0, 1, 2])
        same(psycopg.sql.SQL("{}").format(psycopg.sql.Identifier('a"b')).as_string(connection), '"a""b"')


async def with_asyncpg() -> None:
    connection = await asyncpg.connect(
        host=os.environ["PGHOST"], user=os.environ["PGUSER"], database=os.environ["PGDATABASE"]
    )
    same([*await connection.fetchrow("SELECT i, s, n, at, d, v, u, a, b, f, t FROM dr WHERE i = 1")], list(ROW))
    same(await connection.fetchval("SELECT j->>'a' FROM dr WHERE i = $1", 1), "1")
    async with connection.transaction():
        cursor = await connection.cursor("SELECT generate_series(1, 10)")
        same(await cursor.forward(3), 3)
        same([row[0] for row in await cursor.fetch(2)], [4, 5])
        async with connection.transaction():
            await connection.execute("SAVEPOINT s")
    await connection.copy_records_to_table("dr", records=[(5, "five")], columns=["i", "s"])
    same(await connection.fetch("SELECT s FROM dr WHERE i = ANY($1::int[])", [5]), [("five",)])
    await connection.executemany("INSERT INTO dr (i, a) VALUES ($1, $2)", [(6, [1]), (7, None)])
    await connection.set_type_codec("jsonb", encoder=str, decoder=lambda text: ("seen", text), schema="pg_catalog")
    same(await connection.fetchval("SELECT '{}'::jsonb"), ("seen", "{}"))
    statement = await connection.prepare("SELECT $1::int + 1")
    same(await statement.fetchval(1), 2)
    await connection.close()
    pool = await asyncpg.create_pool(
        host=os.environ["PGHOST"], user=os.environ["PGUSER"], database=os.environ["PGDATABASE"], min_size=2
    )
    same(await asyncio.gather(*(pool.fetchval("SELECT $1::int", at) for at in range(5))), list(range(5)))
    await pool.close()


def with_arrow() -> None:
    host, port = os.environ["PGHOST"], os.environ.get("PGPORT", "5432")
    place = f"postgresql://{os.environ['PGUSER']}@/{os.environ['PGDATABASE']}?host={host}&port={port}"
    with adbc_driver_postgresql.dbapi.connect(place) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT i, s, at, d, f, t, a FROM dr WHERE i = 1")
        table = cursor.fetch_arrow_table()
        same(
            table.to_pylist(),
            [{"i": 1, "s": "ann", "at": AT, "d": date(2024, 1, 2), "f": 1.5, "t": True, "a": [1, None]}],
        )
        made = pyarrow.table({"x": [1, 2, None], "y": ["a", None, "c"], "z": [1.5, 2.5, 3.5]})
        cursor.execute("DROP TABLE IF EXISTS dr_made")
        same(cursor.adbc_ingest("dr_made", made, mode="create"), 3)
        same(cursor.adbc_ingest("dr_made", made, mode="append"), 3)
        cursor.execute("SELECT count(*), count(x) FROM dr_made WHERE z > $1", (2.0,))
        same(cursor.fetchall(), [(4, 2)])
        names = connection.adbc_get_objects(depth="tables", table_name_filter="dr_made").read_all().to_pylist()
        assert "dr_made" in str(names)
        connection.commit()
    frame = polars.read_database_uri("SELECT x, y FROM dr_made WHERE x IS NOT NULL ORDER BY x", place, engine="adbc")
    same(frame.rows(), [(1, "a"), (1, "a"), (2, None), (2, None)])
    polars.DataFrame({"p": [1], "q": ["x"]}).write_database(
        "dr_written", place, engine="adbc", if_table_exists="replace"
    )
    with psycopg.connect("") as connection:
        same(connection.execute("TABLE dr_written").fetchall(), [(1, "x")])
        same(polars.read_database("SELECT p FROM dr_written", connection).rows(), [(1,)])


def with_pgcli() -> None:
    program = Path(sys.executable).with_name("pgcli")
    text = "\\dt\n\\d dr\n\\dv\n\\df\n\\l\n\\x\nSELECT 7 AS seven;\n"
    done = subprocess.run([program, "-w"], input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "seven | 7" in done.stdout, (done.stdout, done.stderr)
    assert "dr_made" in done.stdout, (done.stdout, done.stderr)
    assert "rror" not in done.stdout + done.stderr, (done.stdout, done.stderr)


with_psycopg()
print("psycopg: done")
asyncio.run(with_asyncpg())
print("asyncpg: done")
with_arrow()
print("ADBC and polars: done")
with_pgcli()
print("pgcli: done")
with psycopg.connect("") as last:
    last.execute("DROP TABLE dr, dr_made, dr_written")
