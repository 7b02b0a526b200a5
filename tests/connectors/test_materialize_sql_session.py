"""Sessions of every SQL connector: rows and checkpoint of one transaction, and nobody else's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from sql_databases import DATABASES, Database, Source, commit, load, source, stored
from sql_worker import BINDING, FENCED, count_of, expected

from connectors.kit import ConstraintType
from connectors.kit.connector import BEGIN_FROM_NOTHING
from derive.document.exact import parse_exact
from derive.errors import EndpointError

BALANCES = source({"account": ["string"]}, {"balance": ["integer", "null"], "note": ["string", "null"]})


@pytest.fixture(params=sorted(DATABASES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path)


def test_stored_rows_are_kept_and_loaded(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        assert session.checkpoint == BEGIN_FROM_NOTHING
        commit(session, binding, [{"account": "ann", "balance": 3}, {"account": "bob", "note": "new"}], b"one")
        commit(session, binding, [{"account": "ann", "balance": 5}], b"two", exists=True)

        assert load(session, [("ann",), ("cat",)]) == ['{"account":"ann","balance":5}']
        assert load(session, [("bob",)]) == ['{"account":"bob","note":"new"}']
        assert load(session, []) == []

    with database.session(binding) as session:
        assert session.checkpoint == b"two"
    assert sorted(database.query("SELECT account, balance, note FROM balances")) == [
        ("ann", 5, None),
        ("bob", None, "new"),
    ]


def test_delta_updates_are_appended(database: Database) -> None:
    """The root document may be left out."""
    binding, without = BALANCES.binding(delta=True), BALANCES.binding("others", delta=True, leave_out=["flow_document"])
    database.apply(binding)
    database.apply(without)
    with database.session(binding) as session:
        for balance in (3, 4):
            commit(session, binding, [{"account": "ann", "balance": balance}])
    with database.session(without) as session:
        commit(session, without, [{"account": "ann", "balance": 3}])

    assert sorted(database.query("SELECT account, balance FROM balances")) == [("ann", 3), ("ann", 4)]
    assert database.query("SELECT * FROM others") == [("ann", 3, None)]


KEYS: list[tuple[list[str], list[Any]]] = [
    (["string"], ["äöü 😀 \u2028 '\"\\ \t\n\r", "", "\\N", "NULL"]),
    (["integer"], [0, -(2**63), 2**64, -(10**37)]),
    (["boolean"], [False]),
    (["integer", "string"], ["5", 5]),
    (["null", "string"], [None, "null"]),
]


@pytest.mark.sampled(1)
def test_every_key_is_loaded_as_it_was_stored(database: Database) -> None:
    for place, (types, values) in enumerate(KEYS):
        binding = source({"id": types}, {}).binding(f"keys {place}")
        database.apply(binding)
        with database.session(binding) as session:
            for again in (False, True):
                documents = [{"id": value, "again": again} for value in values]
                commit(session, binding, documents, exists=again)
                for value, document in zip(values, documents, strict=True):
                    assert [parse_exact(text.encode()) for text in load(session, [(value,)])] == [document]


def test_keys_of_different_types_are_distinct(database: Database) -> None:
    binding = source({"id": ["boolean", "integer", "null", "string"]}, {}).binding()
    database.apply(binding)
    values = [None, "null", True, "true", 1, "1", "", '"1"']
    with database.session(binding) as session:
        commit(session, binding, [{"id": value} for value in values])

        assert load(session, [(value,) for value in values[3:6]]) == ['{"id":"1"}', '{"id":"true"}', '{"id":1}']
    assert database.query("SELECT count(*) FROM balances") == [(8,)]


def test_column_refuses_values_of_another_type(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        session.prepare(b"{}")
        with pytest.raises(
            EndpointError, match=r"column 'balance' of type \w+, key \['ann'\]: 'three' is not an integer"
        ):
            session.store(0, stored(binding, [{"account": "ann", "balance": "three"}]))


def test_session_refuses_tables_that_do_not_fit(database: Database) -> None:
    with pytest.raises(EndpointError, match="'flow_checkpoints' is missing"):
        database.open(BALANCES.binding())
    database.apply(BALANCES.binding(leave_out=["note"]))
    with pytest.raises(EndpointError, match="balances' does not fit this version"):
        database.open(BALANCES.binding())


# Processes that are killed, or stopped while others take over: whatever happens, sums follow from the checkpoint.


WORKER = Path(__file__).with_name("sql_worker.py")
LONGEST = {"duckdb": 1.5}
"""Seconds, at most, before a process is killed."""


class Worker:
    """A process at work."""

    def __init__(self, name: str, database: Database) -> None:
        command = [sys.executable, str(WORKER), name, json.dumps(database.config), *database.schema]
        folders = [str(WORKER.parents[2]), str(WORKER.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self._said = self.process.stdout.readline()

    @property
    def is_ready(self) -> bool:
        return self._said == b"ready\n"

    def wait_for_commit(self) -> None:
        """Wait until it has committed something, however slow the machine is."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"committed\n"

    def send(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert b"Traceback" not in errors, errors.decode()
        return self.process.returncode


def checked(database: Database, at_least: int) -> int:
    """How many transactions are committed, and the sums are those of these."""
    with database.session(BINDING) as session:
        count = count_of(session.checkpoint)
    rows = dict(database.query("SELECT id, sum FROM sums"))
    assert {name: int(total) for name, total in rows.items()} == expected(count)
    assert count >= at_least
    return count


def torment(name: str, database: Database, kills: int, seed: int, *, stops: bool) -> int:
    database.apply(BINDING)
    chance = random.Random(seed)
    count = 0
    for number in range(kills):
        worker = Worker(name, database)
        assert worker.is_ready
        time.sleep(chance.random() * LONGEST.get(name, 0.4))
        if stops and chance.random() < 0.5:
            worker.send(signal.SIGSTOP)
            successor = Worker(name, database)
            assert successor.is_ready
            time.sleep(chance.random() * 0.2)
            worker.send(signal.SIGCONT)
            assert worker.end() != 0
            worker = successor
        if number == 0:
            worker.wait_for_commit()
        worker.send(signal.SIGKILL)
        assert worker.end() == -signal.SIGKILL
        count = checked(database, count)
    return count


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "stops"), [("duckdb", False), ("postgres", True), ("sqlite", False)])
def test_killed_connectors_lose_and_repeat_no_rows(name: str, stops: bool, tmp_path: Path) -> None:
    assert torment(name, DATABASES[name](tmp_path), 2, seed=13, stops=stops) > 0


@pytest.mark.torture
@pytest.mark.parametrize(("name", "stops"), [("duckdb", False), ("postgres", True), ("sqlite", False)])
def test_connectors_killed_a_hundred_times_lose_and_repeat_no_rows(name: str, stops: bool, tmp_path: Path) -> None:
    assert torment(name, DATABASES[name](tmp_path), 100, seed=random.randrange(1 << 30), stops=stops) > 100


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(DATABASES))
def test_one_of_concurrent_workers_is_not_fenced(name: str, tmp_path: Path) -> None:
    database = DATABASES[name](tmp_path)
    database.apply(BINDING)
    first = Worker(name, database)
    second = Worker(name, database)
    assert first.end() == FENCED
    second.wait_for_commit()
    assert second.process.poll() is None
    second.send(signal.SIGKILL)
    second.end()
    assert checked(database, 1) > 0


# Law: however a schema evolves, a table that follows it holds every row as it was stored, column by column.


WIDE = st.integers(-(2**80), 2**80)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": WIDE | st.integers(-5, 5),
    "bounded": st.integers(-1000, 1000),
    "fractional": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    "null": st.none(),
    "object": st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2),
}
KINDS = (
    ("boolean",),
    ("bounded",),
    ("integer",),
    ("string",),
    ("integer", "string"),
    ("bounded", "null"),
    ("null", "string"),
    ("integer", "null"),
    ("object", "null"),
    ("boolean", "integer", "null", "object", "string"),
)
FRACTIONS = (("fractional",), ("fractional", "null"))


@dataclass(frozen=True)
class Version:
    """A version of a collection, and rows that are stored while it lasts."""

    fields: dict[str, tuple[str, ...]]
    rows: Sequence[dict[str, Any]]

    @property
    def source(self) -> Source:
        values: dict[str, Sequence[str]] = {
            name: sorted({_plain(kind) for kind in kinds}) for name, kinds in self.fields.items()
        }
        bounded = {"minimum": -1000, "maximum": 1000}
        properties = {name: bounded if "bounded" in kinds else {} for name, kinds in self.fields.items()}
        return source({"id": ["integer"]}, values, schema={"type": "object", "properties": properties})


def _plain(kind: str) -> str:
    return "integer" if kind == "bounded" else kind


@st.composite
def versions(draw: st.DrawFn) -> list[Version]:
    drawn = []
    for _ in range(draw(st.integers(2, 5))):
        names = draw(st.sets(st.sampled_from(["a", "b", 'C "quoted"']), min_size=1))
        fields = {name: draw(st.sampled_from(KINDS + FRACTIONS)) for name in sorted(names)}
        row = st.fixed_dictionaries(
            {"id": st.integers(1, 6)}
            | {name: st.one_of([VALUES[kind] for kind in kinds]) for name, kinds in fields.items()}
        )
        rows = draw(st.lists(row, max_size=4, unique_by=lambda row: row["id"]))
        drawn.append(Version(fields, rows))
    return drawn


def evolve(duckdb_database: Database, table: str, history: Sequence[Version]) -> None:
    """Follow the versions as a catalog's author would, who leaves out what cannot be, and compare after each."""
    stored: dict[int, dict[str, Any]] = {}
    documents: dict[int, dict[str, Any]] = {}
    for version in history:
        proposed = version.source.proposed(table)
        (validated,) = duckdb_database.validate(proposed)
        refused = [
            name
            for name, constraint in validated.constraints.items()
            if constraint.type is ConstraintType.UNSATISFIABLE
        ]
        assert not {"id", "flow_document"} & set(refused)
        binding = version.source.binding(table, leave_out=refused)
        duckdb_database.apply(binding)
        assert duckdb_database.apply(binding) == ""
        with duckdb_database.session(binding) as session:
            for exists in (False, True):
                rows = [row for row in version.rows if (row["id"] in documents) == exists]
                commit(session, binding, rows, exists=exists)
                documents |= {row["id"]: row for row in rows}
                for row in rows:
                    fresh = {name: value for name, value in row.items() if name not in refused}
                    stored[row["id"]] = stored.get(row["id"], {}) | fresh
            loaded = load(session, [(number,) for number in documents])
        assert sorted(parse_exact(text.encode())["id"] for text in loaded) == sorted(documents)
        assert all(parse_exact(text.encode()) in documents.values() for text in loaded)
        expected = {
            (number, name): value for number, row in stored.items() for name, value in row.items() if value is not None
        }
        held = columns(duckdb_database, table)
        assert held.keys() == expected.keys()
        assert [key for key, value in expected.items() if not same(value, held[key])] == []


def columns(duckdb_database: Database, table: str) -> dict[tuple[int, str], Any]:
    """Every value that is in a column, by the row's identity and the column's name."""
    (names, *rows) = duckdb_database.table(table)
    identity = names.index("id")
    return {
        (int(row[identity]), name): value
        for row in rows
        for name, value in zip(names, row, strict=True)
        if value is not None and name != "flow_document"
    }


def same(value: Any, held: Any) -> bool:
    """Whether a column holds a value: numbers as any type of number, and anything as JSON text or what that is."""
    if type(value) is float:
        return float(held) == value
    if type(value) is int:
        return Decimal(held) == value
    if type(value) is bool and not isinstance(held, str):
        return bool(held) == value
    if type(value) is str:
        return held in (value, json.dumps(value, ensure_ascii=False))
    return bool(value == (parse_exact(held.encode()) if isinstance(held, str) else held))


_tables = count()


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def duckdb_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DATABASES[request.param](Path(tmp_path_factory.mktemp("evolution")))


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DATABASES["duckdb"](Path(tmp_path_factory.mktemp("evolution")))


@pytest.mark.sampled(1)
@settings(max_examples=examples(32, 5))
@given(history=versions())
def test_a_table_holds_every_row_as_it_was_stored(duckdb_database: Database, history: list[Version]) -> None:
    evolve(duckdb_database, f"table {next(_tables)}", history)


@settings(max_examples=examples(8, 2))  # each opens the file many times
@given(history=versions())
def test_table_of_duckdb_evolves(duckdb: Database, history: list[Version]) -> None:
    exact = [replace(version, rows=[row for row in version.rows if _are_doubles(row)]) for version in history]
    evolve(duckdb, f"table {next(_tables)}", exact)


def _are_doubles(row: dict[str, Any]) -> bool:
    return all(abs(value) <= 2**53 for value in row.values() if type(value) is int)
