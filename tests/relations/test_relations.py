"""Collections as relations: their columns, rows at a time, and changes from a time on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from conftest import World, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.algebra.bounds import ColumnBounds
from derive.algebra.types import ARRAYS, CATALOG_TYPES, Row, Type
from derive.catalog import load
from derive.contents.inputs import SharedPolls, TableInput, relation_input
from derive.contents.reduced_input import ReducedInput
from derive.contents.rows import contents_at
from derive.errors import FencedError, FrontierError, SqlError
from derive.functions.types.jsonb import jsonb_datum
from derive.functions.types.type_info import datum_of_text, text_of
from derive.protocol.specs import CatalogSpec
from derive.relations.arrow import arrow_rows, arrow_type
from derive.relations.columns import RelationColumn, Source, columns_of, compile_rows, jsonb_text
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn

CATALOG = """
collections:
  r/events:
    schema:
      type: object
      required: [b, a]
      properties:
        a: {type: string}
        b: {type: integer}
        n: {type: number, reduce: {strategy: sum}}
        ok: {type: boolean, default: true}
        tags: {type: array, items: {type: string}, reduce: {strategy: append}}
        mixed: {type: [string, integer, "null"]}
        inner: {type: object, properties: {x: {type: [integer, "null"]}}}
        at: {type: string}
        gone: {type: boolean}
      oneOf:
        - {required: [gone], properties: {gone: {const: true}}, reduce: {strategy: merge, delete: true}}
        - {properties: {gone: false}, reduce: {strategy: merge}}
    key: [/b, /a]
"""
NAME = "r/events"
BASE = 1_000_000


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=BASE)


def ingest(world: World, *documents: dict[str, Any], door: Door = Door.INGEST) -> int:
    """Ingest documents, and return the time at which all of them are there."""
    world.ingest(NAME, list(documents), None, door)
    world.wall += 1_000
    return world.store.seal_now([NAME]) - 1


def rows_at(world: World, source: Source, as_of: int) -> Counter[Row]:
    return Counter(row for batch in contents_at(world.store, source, as_of) for row in batch)


def test_collection_has_columns_of_its_fields(world: World) -> None:
    columns = columns_of(world.catalog.collections[NAME])

    assert [(column.name, column.type, column.nullable) for column in columns] == [
        ("b", Type.BIGINT, False),
        ("a", Type.TEXT, False),
        ("at", Type.TEXT, True),
        ("gone", Type.BOOLEAN, True),
        ("inner", Type.JSONB, True),
        ("inner/x", Type.BIGINT, True),
        ("mixed", Type.JSONB, True),
        ("n", Type.DOUBLE, True),
        ("ok", Type.BOOLEAN, False),
        ("tags", Type.JSONB, True),
        ("flow_document", Type.JSONB, False),
        ("flow_published_at", Type.TIMESTAMPTZ, False),
    ]


def test_rows_are_reduced_documents(world: World) -> None:
    first = ingest(world, {"b": 1, "a": "x", "n": 1, "inner": {"x": None}}, {"b": 2, "a": "y", "mixed": 7})
    second = ingest(world, {"b": 1, "a": "x", "n": 0.5, "tags": ["t"], "ok": False}, {"b": 2, "a": "y", "gone": True})
    spec = world.catalog.collections[NAME]

    assert set(rows_at(world, spec, first)) == {
        (1, "x", None, None, '{"x": null}', None, None, 1.0, 1, None, '{"a": "x", "b": 1, "n": 1, "inner": {"x": null}}', BASE),
        (2, "y", None, None, None, None, "7", None, 1, None, '{"a": "y", "b": 2, "mixed": 7}', BASE + 1),
    }  # fmt: skip
    ((row, count),) = rows_at(world, spec, second).items()
    assert (row[7:10], count) == ((1.5, 0, '["t"]'), 1)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from(["x", "y", ""]), st.booleans()), max_size=12),
    st.sets(st.integers(-3, 3)),
    st.sets(st.sampled_from(["x", "y", "z", None])),
)
@settings(max_examples=examples(40, 6), deadline=None)
def test_only_rows_of_requested_keys_are_read(
    documents: list[tuple[int, str, bool]], numbers: set[int], texts: set[str | None]
) -> None:
    """Readers return the rows of the requested key values, or all rows if a column of the key has no condition."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "flow.yaml").write_text(CATALOG)
        world = World(Path(folder) / "data", load(Path(folder) / "flow.yaml"), wall=BASE)
        for number, text, is_gone in documents:
            as_of = ingest(world, {"b": number, "a": text, "n": 1} | ({"gone": True} if is_gone else {}))
        spec = world.catalog.collections[NAME]
        as_of = ingest(world, {"b": 0, "a": "x", "n": 1})

        def rows(**equalities: frozenset[Any]) -> list[Row]:
            reported = {["b", "a"].index(name): ColumnBounds(data) for name, data in equalities.items()}
            return [row for batch in contents_at(world.store, spec, as_of, None, reported) for row in batch]

        every = rows()
        wanted = [row for row in every if row[0] in numbers and row[1] in texts]
        assert rows(b=frozenset(numbers), a=frozenset(texts)) == wanted
        assert rows(b=frozenset(numbers)) == every
        world.store.close()


def test_only_requested_columns_are_computed(world: World) -> None:
    as_of = ingest(world, {"b": 1, "a": "x", "n": 1})
    ((row,),) = contents_at(world.store, world.catalog.collections[NAME], as_of, {0})

    assert row == (1, *[None] * 11)


def test_unknown_times_are_refused(world: World) -> None:
    as_of = ingest(world, {"b": 1, "a": "x"})

    with pytest.raises(FrontierError, match="not yet"):
        list(contents_at(world.store, world.catalog.collections[NAME], as_of + 1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1 << 63, "9223372036854775808, which is out of range for bigint"),
        (10**300, f"1{'0' * 199}…, which is out of range for bigint"),
        (1.5, "1.5, which is not of type bigint"),
        ("x", '"x", which is not of type bigint'),
    ],
)
def test_unfit_value_error_names_the_document(world: World, value: Any, reason: str) -> None:
    rows = compile_rows(columns_of(world.catalog.collections[NAME]))

    with pytest.raises(SqlError) as caught:
        rows([{"b": 1, "a": "y"}, {"a": "x", "b": value}], [1, 2])

    assert caught.value.sqlstate == "22003"
    assert caught.value.message.startswith(f'\'b\' is {reason}, in {{"a":"x","b":')


TIMES = """
collections:
  r/times:
    schema:
      type: object
      required: [key, at]
      properties:
        key: {type: string, format: date-time}
        at: {type: string, format: date-time}
        mixed: {type: [string, integer], format: date-time}
        until: {type: [string, "null"], format: date-time, default: "2026-01-01T00:00:00Z"}
    key: [/key]
"""


@pytest.fixture
def times(catalog_of: Callable[..., CatalogSpec]) -> tuple[RelationColumn, ...]:
    return columns_of(catalog_of(TIMES).collections["r/times"])


def test_date_times_apart_from_the_key_are_timestamps(times: tuple[RelationColumn, ...]) -> None:
    assert [(column.name, column.type) for column in times[:4]] == [
        ("key", Type.TEXT),
        ("at", Type.TIMESTAMPTZ),
        ("mixed", Type.JSONB),
        ("until", Type.TIMESTAMPTZ),
    ]


def test_date_times_equal_their_casts(times: tuple[RelationColumn, ...]) -> None:
    texts = [
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00:00.5z",
        "2026-01-31T12:00:00.1234565+02:00",
        "2026-01-31T12:00:00.1234575-15:59",
        "2026-01-31T12:00:00.999999999Z",
        "2016-12-31T23:59:60Z",
        "2017-01-01T01:59:60.25+02:00",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59.9-05:00",
        "1969-12-31T23:59:59.9999994Z",
    ]
    rows = compile_rows(times)([{"key": text, "at": text, "until": None} for text in texts], [1] * len(texts))

    assert [row[:2] for row in rows] == [(text, datum_of_text(Type.TIMESTAMPTZ, text)) for text in texts]
    assert {row[3] for row in rows} == {None}
    assert compile_rows(times)([{"key": "", "at": texts[0]}], [1])[0][3] == 1_767_225_600_000_000


def test_error_of_a_year_without_timestamps_names_the_text(times: tuple[RelationColumn, ...]) -> None:
    with pytest.raises(SqlError) as caught:
        compile_rows(times)([{"key": "", "at": "0000-01-01T00:00:00Z"}], [1])

    assert (caught.value.sqlstate, caught.value.hint) == ("22008", "query the text: flow_document #>> '{at}'")
    assert caught.value.message.startswith("'at' is \"0000-01-01T00:00:00Z\", which is out of range for timestamp")


def test_columns_beside_an_unfit_value_are_readable(world: World) -> None:
    columns = columns_of(world.catalog.collections[NAME])
    index = next(index for index, column in enumerate(columns) if column.name == "a")

    assert compile_rows(columns, {index})([{"b": 1 << 63, "a": "x"}], [1])[0][index] == "x"


def test_input_reports_each_insertion_once(world: World) -> None:
    as_of = ingest(world, {"b": 1, "a": "x", "n": 1})
    with closing(ReducedInput(world.store, world.catalog.collections[NAME], as_of)) as source:
        snapshot = [row for batch in source.snapshot(as_of) for row in batch]
        assert (source.poll(), len(snapshot)) == ((as_of + 1, []), 1)
        later = ingest(world, {"b": 1, "a": "x", "n": 2}, {"b": 1, "a": "x", "n": 4}, {"b": 3, "a": "z", "gone": True})
        frontier, updates = source.poll()

        assert frontier == later + 1
        assert [(row[7], diff) for _, row, diff in updates] == [(1.0, -1), (3.0, 1), (3.0, -1), (7.0, 1)]
        assert source.poll() == (frontier, [])


def test_input_that_a_process_opens_ends_its_use_of_the_folder(world: World, tmp_path: Path) -> None:
    """A process may open many inputs, one after the other."""
    ingest(world, {"b": 1, "a": "x", "n": 1})
    table = world.store.tables.create("t", [TableColumn("a", "integer")])
    lock = world.store.root / "host.lock"
    before = lock.read_text()
    for source in (world.catalog.collections[NAME], table):
        with closing(relation_input(world.store, source, table.since)) as given:
            opened = given.opener(table.since, None, tmp_path / "place")()
            assert lock.read_text() != before
            opened.close()
            assert lock.read_text() == before


def test_an_input_notices_a_reset(world: World) -> None:
    world.claim(NAME)
    as_of = ingest(world, {"b": 1, "a": "x", "n": 1}, door=Door.TEST)
    with closing(ReducedInput(world.store, world.catalog.collections[NAME], as_of)) as source:
        world.store.reset([NAME])
        with pytest.raises(FencedError):
            source.poll()


DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {"b": st.integers(0, 2), "a": st.just("k")},
        optional={
            "n": st.sampled_from([1, 0.5, -2]),
            "tags": st.lists(st.sampled_from(["u", "v"]), max_size=2),
            "gone": st.just(True),
        },
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(40, 6), deadline=None)
@given(
    history=st.lists(st.tuples(DOCUMENTS, st.booleans()), min_size=2, max_size=6),
    start=st.floats(0, 1),
    most=st.integers(0, 4),
    asks=st.booleans(),
)
def test_snapshot_and_changes_are_the_contents_at_every_time(
    history: list[tuple[list[dict[str, Any]], bool]],
    start: float,
    most: int,
    asks: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("data")
    (folder / "flow.yaml").write_text(CATALOG)
    world = World(folder / "data", load(folder / "flow.yaml"), wall=BASE)
    spec = world.catalog.collections[NAME]
    times: list[int] = []
    index = int(start * (len(history) - 1))
    source: ReducedInput | None = None
    total: Counter[Row] = Counter()
    polled: list[tuple[int, Row, int]] = []
    frontier = 0
    for number, (documents, compacts) in enumerate(history):
        times.append(ingest(world, *documents))
        if compacts:
            compact(world.store, spec, grace=0)
        if number == index:
            source = ReducedInput(world.store, spec, times[-1], most_updates=most)
            expected = rows_at(world, spec, times[-1])
            snapshot = source.snapshot(times[-1]) if asks else iter([list(expected.elements())])
            total = Counter(row for batch in snapshot for row in batch)
            assert total == expected
        elif source is not None:
            frontier, updates = source.poll()
            polled += updates
    assert source is not None
    while frontier <= times[-1]:
        frontier, updates = source.poll()
        polled += updates
    assert [clock for clock, _, _ in polled] == sorted(clock for clock, _, _ in polled)
    for clock in sorted({*times[index:], *(clock for clock, _, _ in polled)}):
        for at, row, diff in polled:
            if at == clock:
                total[row] += diff
        assert +total == rows_at(world, spec, clock)
        assert min(total.values(), default=0) >= 0
    source.close()
    world.store.close()


# Tables


COLUMNS = tuple(
    TableColumn(name, kind.value)
    for name, kind in [
        ("id", Type.BIGINT),
        ("ok", Type.BOOLEAN),
        ("n", Type.DOUBLE),
        ("d", Type.NUMERIC),
        ("t", Type.TEXT),
        ("raw", Type.BYTEA),
        ("j", Type.JSONB),
        ("day", Type.DATE),
        ("at", Type.TIMESTAMPTZ),
        ("span", Type.INTERVAL),
        ("doc", Type.TEXT),
    ]
)
TEXTS = ["5", "t", "Infinity", "1e40", "ü\n", "\\x00ff", '{"a": 1.000000000000000000001}', "2020-02-29",
         "2020-01-01 00:00:00.000001+00", "1 mon 2 days 00:00:03", ""]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data", wall=lambda: BASE, durable=False)
    yield store
    store.close()


def full_row() -> Row:
    return tuple(datum_of_text(Type(column.type), text) for column, text in zip(COLUMNS, TEXTS, strict=True))


def test_table_rows_survive_conversion_to_documents(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS)
    rows = [full_row(), (None,) * len(COLUMNS), (-1, 0, "NaN", None, "", b"", "null", 0, 0, None, '"')]
    convert = TableRows(table)
    changes = convert.changes((row, 1) for row in rows)

    assert convert.rows([text for text, _, _ in changes]) == rows
    assert orjson.loads(changes[0][0])["at"] == "2020-01-01 00:00:00.000001+00"
    assert changes[1][:2] == ("{}", b"\0")
    store.tables.append(BASE + 5, {table.id: changes})
    store.tables.flush()
    assert Counter(row for batch in contents_at(store, table, BASE + 5) for row in batch) == Counter(rows)


def test_table_is_an_input_of_a_dataflow(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS[:1])
    rows = TableRows(table)
    store.tables.append(BASE + 1, {table.id: rows.changes([((1,), 2), ((None,), 1)])})
    with closing(relation_input(store, table, BASE + 1)) as source:
        assert isinstance(source, TableInput)
        assert Counter(row for batch in source.snapshot(BASE + 1) for row in batch) == {(1,): 2, (None,): 1}
        store.tables.append(BASE + 2, {table.id: rows.changes([((1,), -1)])})
        store.tables.flush()
        store.tables.append(BASE + 4, {table.id: rows.changes([((2,), 1)])})

        assert source.poll() == (BASE + 5, [(BASE + 2, (1,), -1), (BASE + 4, (2,), 1)])
        assert source.poll() == (BASE + 5, [])


def test_inputs_of_a_table_share_their_polls_within_a_turn(store: Store) -> None:
    table = store.tables.create("sql/public/t", COLUMNS[:1])
    rows, polls = TableRows(table), SharedPolls(store)
    store.tables.append(BASE + 1, {table.id: rows.changes([((1,), 1)])})
    with ExitStack() as stack:
        first, second, late = (
            stack.enter_context(closing(relation_input(store, table, BASE + 1 + since, polls))) for since in (0, 0, -1)
        )
        store.tables.append(BASE + 2, {table.id: rows.changes([((2,), 1)])})
        polls.begin_turn()
        answer = first.poll()
        store.tables.append(BASE + 3, {table.id: rows.changes([((3,), 1)])})

        assert answer == (BASE + 3, [(BASE + 2, (2,), 1)])
        assert second.poll()[1] is answer[1]
        assert late.poll()[1] == [(BASE + 1, (1,), 1), (BASE + 2, (2,), 1), (BASE + 3, (3,), 1)]
        polls.begin_turn()
        assert [source.poll() for source in (first, second)] == [(BASE + 4, [(BASE + 3, (3,), 1)])] * 2


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abü", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON_VALUES)
def test_jsonb_text_equals_the_form_of_scalar_functions(value: Any) -> None:
    assert jsonb_text(value) == jsonb_datum(value)


# The types in documents and Arrow are those of the page about SQL.


PAGE = Path(__file__).parents[2] / "docs" / "sql-queries.md"
LINE = re.compile(r"\| `([^`]+)` \| `([^`]+)` \| (\w+) \| `([^`]+)` \| `([^`]+)` \|")
LINES = LINE.findall(PAGE.read_text())


def test_types_are_all_documented() -> None:
    known = set(Type) - {Type.UNKNOWN, *ARRAYS, *CATALOG_TYPES} | {Type.NUMERIC_ARRAY}
    assert {Type(name) for name, *_ in LINES} == known


@pytest.mark.parametrize(("name", "text", "schema", "document", "arrow"), LINES)
def test_types_have_document_forms(name: str, text: str, schema: str, document: str, arrow: str) -> None:
    kind = Type(name)
    table = Table(1, "sql/public/t", (TableColumn("v", name),), (), 0, 0)
    datum = datum_of_text(kind, text)
    rows = TableRows(table)
    ((written, _, _),) = rows.changes([((datum,), 1)])

    assert orjson.loads(written) == {"v": orjson.loads(document)}
    assert rows.rows([written]) == [(datum,)]
    assert text_of(kind, datum) == text
    properties = table.spec.read_schema["properties"]
    assert isinstance(properties, dict)
    assert properties["v"].get("type", "any") == schema
    assert str(arrow_type(kind)) == arrow
    (value,) = arrow_rows([RelationColumn("v", kind, True, "/v")], [(datum,)]).column("v").to_pylist()
    assert arrow not in {"string"} or value == text
