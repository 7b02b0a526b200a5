"""Rows of a table whose columns are what they must be: those that are found among all of them, wherever updates are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.algebra.bounds import Bounds, ColumnBounds
from derive.algebra.types import Datum, Row, Type
from derive.contents.rows import contents_at
from derive.functions.types.type_info import datum_of_text
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn

BASE = 1_000_000
TYPES = {
    "n": Type.BIGINT,
    "note": Type.TEXT,
    "is": Type.BOOLEAN,
    "clock": Type.SMALLINT,  # as a column of every file is called, so there is no typed one, and nothing is left out
    "d": Type.NUMERIC,
    "uuid": Type.UUID,
    "ip": Type.INET,
    "time": Type.TIME,
    "day": Type.DATE,
    "at": Type.TIMESTAMPTZ,
}
TEXTS = {
    Type.BIGINT: ("-5", "5", "55", "9223372036854775807"),
    Type.TEXT: ("", "5", '"', "ü", "55", "note", '","n":5,"'),
    Type.BOOLEAN: ("f", "t"),
    Type.SMALLINT: ("0", "5"),
    Type.UUID: ("00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    Type.INET: ("10.0.0.1", "10.0.0.1/8", "::1"),
    Type.TIME: ("00:00:00", "24:00:00", "12:30:00.5"),
    Type.NUMERIC: ("1.5", "15", "-1.50"),
    Type.DATE: ("2024-02-29", "0044-03-15 BC"),
    Type.TIMESTAMPTZ: ("2024-02-29 12:00:00+00", "2024-02-29 12:00:00.5+00"),
}
DATA: dict[Type, list[Datum]] = {kind: [datum_of_text(kind, text) for text in texts] for kind, texts in TEXTS.items()}
COLUMNS = tuple(TableColumn(name, kind.value) for name, kind in TYPES.items())
KINDS = tuple(TYPES.values())

ROWS = st.tuples(*(st.sampled_from([None, *DATA[kind]]) for kind in KINDS))
ACTIONS: st.SearchStrategy[list[tuple[str, list[tuple[Row, int]]]]] = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.lists(st.tuples(ROWS, st.integers(0, 3)), max_size=8)),
        st.tuples(st.sampled_from(["flush", "compact"]), st.just([])),
    ),
    max_size=12,
)


@st.composite
def bounds_of_columns(draw: st.DrawFn) -> dict[int, ColumnBounds]:
    reported = {}
    for index in draw(st.sets(st.integers(0, len(KINDS) - 1), min_size=1, max_size=3)):
        choices = st.sampled_from(DATA[KINDS[index]])
        if KINDS[index] in {Type.BIGINT, Type.TEXT, Type.SMALLINT} and draw(st.booleans()):
            least = draw(choices)
            reported[index] = ColumnBounds(None, least, draw(st.none() | choices))
        else:
            reported[index] = ColumnBounds(draw(st.frozensets(st.none() | choices, max_size=3)))
    return reported


def fulfils(row: Row, bounds: Bounds) -> bool:
    return all(bound.holds(row[index]) for index, bound in bounds.items() if COLUMNS[index].name != "clock")


def history_of(
    store: Store, table: Table, actions: Sequence[tuple[str, Sequence[tuple[Row, int]]]], *, is_only_added_to: bool
) -> dict[int, Counter[Row]]:
    """Change, flush and compact a table; return its rows at each time.

    Args:
        store: the data folder.
        table: the table, which is empty.
        actions: `change` with the new count of each row, `flush` or `compact`.
        is_only_added_to: whether the count of a row is added to its earlier count.
    """
    rows = TableRows(table)
    present: Counter[Row] = Counter()
    history = {}
    for time, (action, changed) in enumerate(actions, start=BASE + 1):
        if action == "change":
            changes = [
                (row, count if is_only_added_to else count - present[row]) for row, count in dict(changed).items()
            ]
            present.update(dict(changes))
            store.tables.append(time, {table.id: rows.changes(change for change in changes if change[1])})
        elif action == "flush":
            store.tables.flush()
        else:
            compact(store, table.spec, grace=0)
        store.tables.append(time, {}, advance=[table.id])
        history[time] = +present
    return history


@settings(max_examples=examples(60, 10), deadline=None)
@given(ACTIONS, st.lists(bounds_of_columns(), min_size=1, max_size=4))
def test_conditions_keep_all_matching_rows(
    actions: list[tuple[str, list[tuple[Row, int]]]], asked: list[Bounds]
) -> None:
    """At every time, where updates are in segments, and in none; and rows go elsewhere than they came."""
    with TemporaryDirectory() as folder:
        store = Store(Path(folder), wall=lambda: BASE, durable=False)
        table = store.tables.create("sql/public/t", COLUMNS)
        history = history_of(store, table, actions, is_only_added_to=False)
        for time, expected in history.items():
            for bounds in asked:
                found = Counter(row for batch in contents_at(store, table, time, None, bounds) for row in batch)
                assert found == Counter({row: count for row, count in expected.items() if fulfils(row, bounds)})
        store.close()


def test_row_groups_without_requested_rows_are_not_read(tmp_path: Path) -> None:
    """Readers do not notice damage in skipped row groups."""
    store = Store(tmp_path, wall=lambda: BASE, durable=False)
    table = store.tables.create("sql/public/t", COLUMNS[:2])
    count = 40_000
    store.tables.append(BASE + 1, {table.id: TableRows(table).changes(((n, f"note {n}"), 1) for n in range(count))})
    (path,) = tmp_path.rglob("*.parquet")
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 1000] = bytes(1000)
    path.write_bytes(damaged)

    def rows(bounds: Bounds) -> list[Row]:
        return [row for batch in contents_at(store, table, BASE + 1, None, bounds) for row in batch]

    assert rows({0: ColumnBounds(frozenset({7}))}) == [(7, "note 7")]
    assert rows({0: ColumnBounds(None, count - 2)}) == [(n, f"note {n}") for n in (count - 2, count - 1)]
    store.close()
