"""First rows of a table for a dataflow: those that it has, whatever columns are wanted and wherever updates are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_table_conditions import BASE, history_of

from derive.algebra.types import Datum, Row, Type
from derive.contents.inputs import TableInput
from derive.contents.rows import is_added_to, table_at
from derive.functions.types.type_info import datum_of_text
from derive.relations.table_rows import TableRows
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn
from derive.time import BEGINNING

TYPES = {
    "n": Type.BIGINT,
    "note": Type.TEXT,
    "is": Type.BOOLEAN,
    "weight": Type.DOUBLE,
    "d": Type.NUMERIC,
    "uuid": Type.UUID,
    "ip": Type.INET,
    "time": Type.TIME,
    "clock": Type.SMALLINT,  # as a column of every file is called, so there is no typed one
    "json": Type.JSONB,  # nor is there of these
    "list": Type.BIGINT_ARRAY,
}
TEXTS = {
    Type.BIGINT: ("-5", "5", "9223372036854775807"),
    Type.TEXT: ("", '"', "ü", "null"),
    Type.BOOLEAN: ("f", "t"),
    Type.DOUBLE: ("1", "-0", "0.1", "1e300", "NaN", "Infinity", "-Infinity"),
    Type.UUID: ("00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    Type.INET: ("10.0.0.1", "10.0.0.1/8", "::1"),
    Type.TIME: ("00:00:00", "24:00:00", "12:30:00.5"),
    Type.NUMERIC: ("1.5", "1.50", "-15", "NaN"),
    Type.SMALLINT: ("0", "5"),
    Type.JSONB: ("null", "5", '{"a": [null, "b"]}'),
    Type.BIGINT_ARRAY: ("{}", "{1,NULL}"),
}
DATA: dict[Type, list[Datum]] = {kind: [datum_of_text(kind, text) for text in texts] for kind, texts in TEXTS.items()}
KINDS = tuple(TYPES.values())
COLUMNS = tuple(TableColumn(name, kind.value) for name, kind in TYPES.items())

ROWS = st.tuples(*(st.sampled_from([None, *DATA[kind]]) for kind in KINDS))
CHANGES = st.lists(st.tuples(ROWS, st.integers(0, 3)), max_size=8)
ACTIONS: st.SearchStrategy[list[tuple[str, list[tuple[Row, int]]]]] = st.lists(
    st.one_of(st.tuples(st.just("change"), CHANGES), st.tuples(st.sampled_from(["flush", "compact"]), st.just([]))),
    max_size=10,
)
WANTED = st.none() | st.sets(st.integers(0, len(KINDS) - 1)).map(tuple) | st.sets(st.integers(0, 4)).map(tuple)


def snapshot_of(store: Store, table: Table, time: int, wanted: tuple[int, ...] | None) -> Counter[Row]:
    source = TableInput(store, table, time, wanted)
    with closing(source):
        return Counter(row for batch in source.snapshot(time) for row in batch)


def only(row: Row, wanted: tuple[int, ...] | None) -> Row:
    """A row with NULL in columns that are not wanted."""
    return tuple(datum if wanted is None or index in wanted else None for index, datum in enumerate(row))


@settings(max_examples=examples(80, 13), deadline=None)
@given(ACTIONS, st.booleans(), st.lists(WANTED, min_size=1, max_size=4))
def test_additions_equal_the_rows_of_the_table(
    actions: list[tuple[str, list[tuple[Row, int]]]], is_only_added_to: bool, asked: list[tuple[int, ...] | None]
) -> None:
    """At every time; of a table to which rows only come, and of one from which some go as well.

    What is not wanted is there or NULL, and of what comes from files that have all that is wanted, it is NULL.
    """
    with TemporaryDirectory() as folder:
        store = Store(Path(folder), wall=lambda: BASE, durable=False)
        table = store.tables.create("sql/public/t", COLUMNS)
        history = history_of(store, table, actions, is_only_added_to=is_only_added_to)
        for time, expected in history.items():
            for wanted in asked:
                shown = Counter[Row]()
                for row, count in snapshot_of(store, table, time, wanted).items():
                    shown[only(row, wanted)] += count
                kept = Counter[Row]()
                for row, count in expected.items():
                    kept[only(row, wanted)] += count
                assert shown == kept
        known = store.tables.read(table.id, BEGINNING, BASE + len(actions) + 1)
        assert not is_only_added_to or is_added_to(store.root, known.segments, known.appended)
        store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path, wall=lambda: BASE, durable=False)) as store:
        yield store


def additions_to(store: Store, table: Table) -> bool:
    known = store.tables.read(table.id, BEGINNING, BASE + 100)
    return is_added_to(store.root, known.segments, known.appended)


def test_additions_detect_a_deleted_row(store: Store) -> None:
    """While it is in no file, and in one."""
    table = store.tables.create("sql/public/t", COLUMNS[:2])
    rows = TableRows(table)
    store.tables.append(BASE + 1, {table.id: rows.changes([((1, "one"), 2), ((2, "two"), 1)])})
    assert additions_to(store, table)
    store.tables.flush()
    assert additions_to(store, table)
    store.tables.append(BASE + 2, {table.id: rows.changes([((1, "one"), -1)])})
    assert not additions_to(store, table)
    store.tables.flush()
    assert not additions_to(store, table)
    assert snapshot_of(store, table, BASE + 1, (0,)) == {(1, None): 2, (2, None): 1}  # nothing went up to then
    assert snapshot_of(store, table, BASE + 2, (0,)) == {(1, "one"): 1, (2, "two"): 1}


def test_columns_that_are_not_requested_are_not_read(store: Store) -> None:
    """Nor are documents, of what is in files."""
    table = store.tables.create("sql/public/t", (*COLUMNS[:2], COLUMNS[3]))
    store.tables.append(BASE + 1, {table.id: TableRows(table).changes([((1, "one", 0.5), 1), ((2, None, "NaN"), 2)])})
    assert snapshot_of(store, table, BASE + 1, (2,)) == {(1, "one", 0.5): 1, (2, None, "NaN"): 2}
    store.tables.flush()
    assert snapshot_of(store, table, BASE + 1, (2,)) == {(None, None, 0.5): 1, (None, None, "NaN"): 2}
    assert snapshot_of(store, table, BASE + 1, ()) == {(None, None, None): 3}
    assert snapshot_of(store, table, BASE + 1, None) == {(1, "one", 0.5): 1, (2, None, "NaN"): 2}
    assert [row for batch in table_at(store, table, BASE + 1) for row in batch] == [
        (1, "one", 0.5),
        (2, None, "NaN"),
        (2, None, "NaN"),
    ]
