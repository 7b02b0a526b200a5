"""Reads a table over and over in a process of its own, for test_refills.py.

Its arguments are the name of a database of `sql_databases`, its configuration as JSON, and a query. It writes one line for each result that differs from the one before, and ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import apsw
import psycopg

from connectors.materialize_duckdb.endpoint import DatabaseFile

QUERY = 'SELECT "id", "value" FROM "sums" ORDER BY "id"'
"""Default query: each row has a key and an integer."""


def reader(name: str, config: dict[str, Any], query: str) -> Callable[[], list[tuple[Any, ...]]]:
    if name == "postgres":
        host, port = config["address"].split(":")
        login = {"host": host, "port": port, "user": config["user"], "password": config["password"]}
        connection = psycopg.connect(**login, dbname=config["database"], autocommit=True)
        connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", [config["schema"]])
        return lambda: connection.execute(query).fetchall()
    if name == "sqlite":
        database = apsw.Connection(config["path"])
        database.set_busy_timeout(30_000)
        return lambda: list(database.execute(query))

    def read() -> list[tuple[Any, ...]]:
        with DatabaseFile(config["path"]).opened() as opened:
            return opened.execute(query).fetchall()

    return read


def main(name: str, config: str, query: str = QUERY) -> None:
    read, last, ended = reader(name, json.loads(config), query), "", Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while True:
        is_last = not ended.is_alive()
        text = json.dumps({key: int(value) for key, value in read()})
        if text != last:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            last = text
        if is_last:
            return
        time.sleep(0.002)  # others have to come to a file of DuckDB, too


if __name__ == "__main__":
    main(*sys.argv[1:])
