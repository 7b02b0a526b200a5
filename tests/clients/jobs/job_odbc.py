"""ODBC by pyodbc: types, catalogs, keys, batches. PG* of the environment name the server, and PSQLODBC the driver."""

import os
import uuid
from datetime import date, datetime, time
from decimal import Decimal

import pyodbc
from same import same

TABLES = """
CREATE TABLE od_people (id serial PRIMARY KEY, name varchar(20) NOT NULL UNIQUE);
CREATE TABLE od_orders (id bigint PRIMARY KEY, person int REFERENCES od_people ON DELETE CASCADE, amount numeric(10,2));
CREATE INDEX od_orders_person ON od_orders (person);
CREATE VIEW od_totals AS SELECT person, sum(amount) AS total FROM od_orders GROUP BY person;
CREATE TABLE od_types (b boolean, s smallint, i int, l bigint, r real, d double precision, n numeric(12,3), t text,
  c char(4), x bytea, u uuid, day date, clock time, at timestamp)
"""


def connected(**options: object) -> pyodbc.Connection:
    parts = {
        "DRIVER": os.environ["PSQLODBC"],
        "SERVER": os.environ["PGHOST"],
        "PORT": os.environ.get("PGPORT", "5432"),
        "DATABASE": os.environ["PGDATABASE"],
        "UID": os.environ["PGUSER"],
    }
    text = ";".join(f"{name}={value}" for name, value in (parts | options).items())
    return pyodbc.connect(text, autocommit=True)


def describe(connection: pyodbc.Connection) -> None:
    cursor = connection.cursor()
    tables = {row.table_name: row.table_type for row in cursor.tables(schema="public") if row.table_name[:3] == "od_"}
    same(tables, {"od_people": "TABLE", "od_orders": "TABLE", "od_totals": "VIEW", "od_types": "TABLE"})
    columns = [(row.column_name, row.type_name, row.column_size, row.nullable) for row in cursor.columns("od_orders")]
    same(columns, [("id", "int8", 19, 0), ("person", "int4", 10, 1), ("amount", "numeric", 10, 1)])
    same([row.column_name for row in cursor.primaryKeys("od_orders")], ["id"])
    same(
        [(row.fk_name, row.pktable_name) for row in cursor.foreignKeys(foreignTable="od_orders")],
        [("od_orders_person_fkey", "od_people")],
    )
    same([row.fktable_name for row in cursor.foreignKeys(table="od_people")], ["od_orders"])
    names = {row.index_name for row in cursor.statistics("od_orders") if row.index_name}
    same(names, {"od_orders_pkey", "od_orders_person"})
    assert any(row.type_name == "numeric" for row in cursor.getTypeInfo())
    assert connection.getinfo(pyodbc.SQL_DBMS_NAME) == "PostgreSQL"


def types(connection: pyodbc.Connection) -> None:
    cursor = connection.cursor()
    row = (
        True, 7, 1 << 30, 1 << 60, 1.5, 0.1, Decimal("123456789.125"), "größe", "ab  ", b"\0\1\xff",
        uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), date(2024, 2, 29), time(12, 30, 5),
        datetime.fromisoformat("2024-02-29 12:30:05.5"),
    )  # fmt: skip
    marks = ", ".join("?" * len(row))
    for _ in range(3):
        cursor.execute(f"INSERT INTO od_types VALUES ({marks})", row)
    read = cursor.execute("SELECT * FROM od_types WHERE i = ? AND day = ?", 1 << 30, date(2024, 2, 29)).fetchall()
    same(len(read), 3)
    same([str(value).lower() for value in read[0]][1:], [str(value).lower() for value in row][1:])
    cursor.execute(f"INSERT INTO od_types VALUES ({marks})", [None] * len(row))
    same(set(cursor.execute("SELECT * FROM od_types WHERE i IS NULL").fetchone()), {None})


def write(connection: pyodbc.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("INSERT INTO od_people (name) VALUES ('ann'), ('ben')")
    same(cursor.rowcount, 2)
    cursor.executemany("INSERT INTO od_orders VALUES (?, ?, ?)", [(n, 1 + n % 2, Decimal(n) / 4) for n in range(50)])
    same(cursor.execute("SELECT total FROM od_totals WHERE person = ?", 1).fetchval(), Decimal("150.00"))
    same(cursor.execute("UPDATE od_orders SET amount = 1 WHERE person = ?", 2).rowcount, 25)
    same(cursor.execute("SELECT {fn ucase('ab')}").fetchval(), "AB")
    for text, state in (("INSERT INTO od_people (name) VALUES ('ann')", "23505"), ("SELECT nothing", "42703")):
        try:
            cursor.execute(text)
        except pyodbc.Error as error:
            same(error.args[0], state)
        else:
            raise AssertionError(text)


def transact(connection: pyodbc.Connection) -> None:
    connection.autocommit = False
    cursor = connection.cursor()
    cursor.execute("DELETE FROM od_people WHERE name = 'ben'")
    same(cursor.execute("SELECT count(*) FROM od_orders").fetchval(), 25)
    connection.rollback()
    same(cursor.execute("SELECT count(*) FROM od_orders").fetchval(), 50)
    connection.commit()
    connection.autocommit = True


first = connected()
for statement in TABLES.strip().split(";"):
    first.execute(statement)
describe(first)
types(first)
write(first)
transact(first)
with_cursors = connected(UseDeclareFetch=1, Fetch=7)
with_cursors.autocommit = False
same(len(with_cursors.execute("SELECT * FROM od_orders ORDER BY id").fetchall()), 50)
