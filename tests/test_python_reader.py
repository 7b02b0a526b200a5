"""Reading collections from Python, as Arrow tables."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from conftest import World, write_catalog

import derive
from derive.algebra.types import CATALOG_TYPES, Type
from derive.catalog import load
from derive.errors import FrontierError, UsageError
from derive.functions.types.type_info import datum_of_text
from derive.reader import clock_of
from derive.relations.arrow import arrow_rows
from derive.relations.columns import columns_of
from derive.relations.table_rows import TableRows
from derive.storage.table_types import TableColumn

CATALOG = """
collections:
  a/balances:
    schema:
      type: object
      required: [who]
      reduce: {strategy: merge}
      properties: {who: {type: string}, amount: {type: number, reduce: {strategy: sum}}}
    key: [/who]
  a/empty:
    schema: {type: object, required: [who], properties: {who: {type: string}}}
    key: [/who]
"""
BASE = 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=BASE)
    for documents in ([{"who": "ann", "amount": 1}, {"who": "bob", "amount": 2}], [{"who": "ann", "amount": 0.5}]):
        world.ingest("a/balances", documents, None)
        world.wall += 1_000_000
        world.store.seal_now(["a/balances"])
    return world


def test_reader_returns_contents_at_a_time(world: World, tmp_path: Path) -> None:
    with derive.open(source=tmp_path / "flow.yaml") as folder:
        balances = folder.collection("a/balances")
        table = balances.as_of("1970-01-01T00:00:01.5Z").to_arrow()

        assert folder.names == ["a/balances", "a/empty"]
        assert (balances.since, balances.upper) == (0, 3_000_000)
        assert table.schema.names == ["who", "amount", "flow_document", "flow_published_at"]
        assert table.select(["who", "amount"]).to_pylist() == [{"who": "ann", "amount": 1}, {"who": "bob", "amount": 2}]
        assert table.column("flow_published_at")[1].as_py() == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
        latest = balances.latest().to_arrow()
        assert duckdb.connect().from_arrow(latest).sum("amount").fetchall() == [(3.5,)]
        assert latest.to_pandas()["amount"].sum() == 3.5


def test_reader_reports_unreadable_data(world: World, tmp_path: Path) -> None:
    with derive.open(tmp_path / ".flow", source=tmp_path / "flow.yaml") as folder:
        with pytest.raises(UsageError, match="no collection 'a/balance'") as caught:
            folder.collection("a/balance")
        assert caught.value.hint == "did you mean 'a/balances'?"
        with pytest.raises(UsageError, match="nothing is stored in collection 'a/empty' yet"):
            folder.collection("a/empty")
        with pytest.raises(FrontierError, match="not yet"):
            folder.collection("a/balances").as_of(3_000_000).to_arrow()
    with pytest.raises(UsageError, match="is not a data folder"):
        derive.open(tmp_path / "elsewhere", source=tmp_path / "flow.yaml").collection("a/balances")


def test_tables_need_no_catalog(world: World, tmp_path: Path) -> None:
    kinds = [kind for kind in Type if kind not in {Type.UNKNOWN, *CATALOG_TYPES}]
    texts = ["t", "1", "2", "3", "4.5", "NaN", "1.50", "x", "\\x00", "[1]", "2020-01-01", "2020-01-01 00:00:00",
             "2020-01-01 00:00:00+00", "1 day", "12:30:00", "12:30:00+02", str(UUID(int=1)), "10.0.0.1/8", "::/0",
             "08:00:2b:01:02:03", "5"]  # fmt: skip
    texts += ["{t,NULL}", "{1}", "{2}", "{3}", "{1.1}", "{0.5}", "{1.50}", '{x,"y z"}', '{"\\\\x00"}', '{"[1]"}', "{2020-01-01}",
              '{"2020-01-01 00:00:00"}', '{"2020-01-01 00:00:00+00"}', "{24:00:00}", "{24:00:00+00}", "{1 day,NULL}", f"{{{UUID(int=2)}}}", "{::1,NULL}",
              "{10.0.0.0/8}", "{08:00:2b:01:02:03}"]  # fmt: skip
    columns = [TableColumn(kind.name.lower(), kind.value) for kind in kinds]
    table = world.store.tables.create("sql/public/t", columns)
    row = tuple(datum_of_text(kind, text) for kind, text in zip(kinds, texts, strict=True))
    changes = TableRows(table).changes([(row, 1), ((None,) * len(kinds), 1)])
    world.store.tables.append(world.store.timeline.assign(1), {table.id: changes})

    with derive.open(tmp_path / ".flow", source=tmp_path / "none.yaml") as folder:
        read = folder.collection("sql/public/t").latest().to_arrow()
    reported = next(row for row in read.to_pylist() if row["text"] is not None)
    assert read.num_rows == 2
    assert str(reported.pop("double")) == "nan"
    assert reported == {
        "boolean": True, "smallint": 1, "integer": 2, "bigint": 3, "real": 4.5, "numeric": "1.5", "text": "x", "bytea": b"\0",
        "jsonb": "[1]", "date": date(2020, 1, 1), "timestamp": datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        "timestamptz": datetime(2020, 1, 1, tzinfo=UTC), "interval": "1 day", "mz_timestamp": 5,
        "boolean_array": [True, None], "smallint_array": [1], "integer_array": [2], "bigint_array": [3],
        "real_array": [np.float32(1.1)], "double_array": [0.5], "numeric_array": ["1.5"], "text_array": ["x", "y z"], "bytea_array": [b"\0"],
        "jsonb_array": ["[1]"], "date_array": [date(2020, 1, 1)],
        "timestamp_array": [datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)],
        "timestamptz_array": [datetime(2020, 1, 1, tzinfo=UTC)],
        "time": "12:30:00", "timetz": "12:30:00+02", "uuid": str(UUID(int=1)), "inet": "10.0.0.1/8", "cidr": "::/0",
        "macaddr": "08:00:2b:01:02:03", "time_array": ["24:00:00"], "timetz_array": ["24:00:00+00"],
        "uuid_array": [str(UUID(int=2))], "interval_array": ["1 day", None],
        "inet_array": ["::1", None], "cidr_array": ["10.0.0.0/8"], "macaddr_array": ["08:00:2b:01:02:03"],
    }  # fmt: skip


def test_empty_contents_are_a_table(world: World) -> None:
    columns = columns_of(world.catalog.collections["a/balances"])

    assert arrow_rows(columns, []).num_rows == 0
    assert arrow_rows(columns, []).schema.field("amount").type == pa.float64()


def test_reader_accepts_times() -> None:
    assert clock_of("1970-01-01T00:00:01Z") == clock_of(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000
    assert clock_of("17") == clock_of(17) == 17
    assert clock_of("1970-01-01 00:00:01.5+00") == 1_500_000
    with pytest.raises(UsageError, match="'soon' is not a time such as 2024-01-31T12:00:00Z, or a duration"):
        clock_of("soon")
    with pytest.raises(UsageError, match="no time zone"):
        clock_of(datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None))


def test_the_package_imports_nothing_heavy() -> None:
    code = "import derive, sys; print([name for name in ('pyarrow', 'apsw', 'derive.reader') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
