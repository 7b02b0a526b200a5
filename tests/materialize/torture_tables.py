"""Torture of materializations: whatever is killed, tables hold what the collections hold, no row lost or doubled.

An example is derived and kept in SQLite, PostgreSQL and DuckDB, all at once, in many small transactions. Every round
kills the driver, a Python worker, a connector, the PostgreSQL server (which is started again) or everything at a random
moment, or pauses everything, so that another run takes over from one that wakes up later. Once a run has come to its
end, every row of every table is compared with `read --reduce`, its columns with its document, and every byte of the
derived collections with what an undisturbed run derived; then it begins again, with empty databases.

Between kills a SQL table is written, altered, dropped, created, renamed and swapped with another one, while tasks with
`onSourceReset: follow` read it. The endpoints are compared with the rows that it has in the end.

    PYTHONPATH=. .venv/bin/python tests/materialize/torture_tables.py --example acmebank --rounds 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

sys.path += [str(Path(__file__).parents[1] / name) for name in (".", "sql", "engine", "connectors")]

import duckdb
from changing_table import BINDINGS, COLLECTIONS, FOLLOWING, ChangingTable
from postgres_server import PASSWORD, PostgresServer
from torture import NO_SPARK, ROOT, Torture, options_of
from typed_rows import differences
from victims import connector_processes

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.errors import BusyError, HeldError
from derive.storage.store import Store

TABLES = {
    "acmebank": ("acmeBank/balances", "acmeBank/last-large-send", "acmeBank/transfer-outcomes"),
    "flights": ("flights/daily-carrier-stats", "flights/aircraft-last-seen"),
}
ENDPOINTS = ("sqlite", "postgres", "duckdb")


class MaterializeTorture(Torture):
    """One example and its tables, under torture."""

    KINDS: ClassVar = {"driver": 1, "everything": 1, "pause": 1, "worker": 2, "connector": 3, "server": 1}
    VICTIMS: ClassVar = {**Torture.VICTIMS, "connector": connector_processes}

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        (folder / "server").mkdir()
        folder.chmod(0o755)  # the server runs as another user if we are root
        self.server = PostgresServer(folder / "server")
        self.collections = TABLES[options.example]
        os.environ["TORTURE_PASSWORD"] = PASSWORD
        super().__init__(folder, options)
        self.source = folder / "flow.yaml"
        self.source.write_text(json.dumps(self._catalog(options.example)))
        self.table = ChangingTable(load(self.source), self.dice)
        self.table.create(folder / "ingested")

    def _catalog(self, example: str) -> object:
        """JSON is YAML."""
        configs = {
            "sqlite": {"path": str(self.folder / "tables.sqlite")},
            "duckdb": {"path": str(self.folder / "tables.duckdb")},
            "postgres": {**self.server.config, "password": "${env:TORTURE_PASSWORD}"},
        }
        bindings = [{"resource": {"table": _table(name)}, "source": name} for name in self.collections]
        return {
            "import": [str(ROOT / "examples" / example / "flow.yaml")],
            "collections": COLLECTIONS,
            "materializations": {
                f"torture/{kind}": {
                    "endpoint": {"connector": {"image": f"materialize-{kind}", "config": configs[kind]}},
                    "bindings": [*bindings, *BINDINGS],
                }
                for kind in ENDPOINTS
            },
        }

    def _fresh(self, name: str) -> Path:
        for file in self.folder.glob("tables.*"):
            file.unlink()
        self.table.statements.clear()
        with closing(self.server.connect()) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return super()._fresh(name)

    def _kill_by_name(self, what: str, session: int) -> bool:
        if what != "server":
            return super()._kill_by_name(what, session)
        self.server.stop(signal.SIGQUIT)
        self.server.start()
        return True

    def _until_lost(self, data: Path) -> bool:
        self._change_table(data)
        return super()._until_lost(data)

    def _kill(self, process: subprocess.Popen[bytes]) -> str:
        self._change_table(self.folder / "disturbed")
        return super()._kill(process)

    def _change_table(self, data: Path) -> None:
        """Change the SQL table; a paused run that holds a lock goes on before that."""
        try:
            self.table.change(data)
        except (BusyError, HeldError):
            if not self.paused:
                raise
            self._wake()
            self.table.change(data)

    def _compare_table(self, data: Path) -> None:
        """Compare the endpoints with the SQL table, once an undisturbed run has read the rest."""
        expected = self.table.expected(data)
        status = self._start(data, "{}", NO_SPARK).wait()
        if status:
            raise SystemExit(f"{self._told()}: the last run ended with status {status}; see {self._kept(data)}")
        for kind in ENDPOINTS:
            for name, columns in FOLLOWING.items():
                rows = sorted(self._query(kind, f"SELECT {columns} FROM {name}")[1])
                if name != "items":
                    rows = [row for row in rows if row[1]]  # a group whose rows are gone counts none
                if rows != expected[name]:
                    raise SystemExit(
                        f"{self._told()}: {name} in {kind} has {rows}, and not {expected[name]}; see {self._kept(data)}"
                    )

    def _kept(self, data: Path) -> Path:
        kept = super()._kept(data)
        for file in self.folder.glob("tables.*"):
            shutil.copy(file, kept)
        (kept / "statements.txt").write_text("\n".join(f"{at:.6f} {text}" for at, text in self.table.statements))
        return kept

    def _told(self) -> str:
        changes = ", ".join(f"{count} {kind}" for kind, count in sorted(self.table.changes.items()))
        return f"{super()._told()}, changes of a table: {changes}"

    def _digest(self, data: Path) -> dict[str, str]:
        self._compare_table(data)
        with closing(Store(data)) as store:
            for name in self.collections:
                spec = self.catalog.collections[name]
                parts = read_reduced(store, spec, ReadOptions(), partial(reduced_locally, scratch=data / "scratch"))
                expected = sorted(text for rows in parts for text in rows.texts.to_pylist())
                for kind in ENDPOINTS:
                    rows = self._rows(kind, _table(name))
                    stored = sorted(text for text, _ in rows)
                    wrong = differences(spec, rows)
                    if wrong:
                        raise SystemExit(f"{self._told()}: {name} in {kind}: {wrong[0]}; see {self._kept(data)}")
                    if stored != expected:
                        kept = self._kept(data)
                        raise SystemExit(
                            f"{self._told()}: {len(stored)} rows of {name} in {kind} are not the {len(expected)} of the"
                            f" collection; see {kept}"
                        )
        return super()._digest(data)

    def _rows(self, kind: str, table: str) -> list[tuple[str, dict[str, Any]]]:
        """The documents of a table, each with the values of all columns."""
        names, rows = self._query(kind, f'SELECT CAST(flow_document AS VARCHAR), * FROM "{table}"')
        return [(row[0], dict(zip(names[1:], row[1:], strict=True))) for row in rows]

    def _query(self, kind: str, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns and rows of a query of an endpoint."""
        if kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "tables.sqlite", timeout=60)) as database:
                cursor = database.execute(query)
                return [column[0] for column in cursor.description], cursor.fetchall()
        if kind == "duckdb":
            with closing(duckdb.connect(str(self.folder / "tables.duckdb"), read_only=True)) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                found = connection.execute(query)
                return [column[0] for column in found.description], found.fetchall()
        with closing(self.server.connect()) as server:
            taken = server.execute(query.encode())
            return [column.name for column in taken.description or ()], taken.fetchall()


def _table(collection: str) -> str:
    return collection.rpartition("/")[2]


def main() -> int:
    """Run the rounds; the exit status is that of the first difference."""
    parser = options_of(__doc__ or "")
    options = parser.parse_args()
    print(f"{options.example}: {options.rounds} rounds, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flowctl-torture-") as name:
        torture = MaterializeTorture(Path(name), options)
        try:
            return torture.run()
        finally:
            torture.server.stop(signal.SIGQUIT)


if __name__ == "__main__":
    random.seed()
    sys.exit(main())
