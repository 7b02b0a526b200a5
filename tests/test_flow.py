"""The Python interface: `derive.open` beside other processes, bad input, and values of SQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from conftest import write_catalog
from patience import PATIENCE_SECONDS

import derive
from derive.errors import DocumentError, FlowError, LambdaError, SqlError, StorageError, UsageError
from derive.storage.store import Store

CATALOG = """
collections:
  a/orders:
    schema: {type: object, required: [id], properties: {id: {type: integer}, amount: {type: number}, at: {type: string}}}
    key: [/id]
  a/doubles:
    schema: {type: object, required: [id], properties: {id: {type: integer}, amount: {type: number}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10ms}
      transforms: [{name: t, source: a/orders, shuffle: any, lambda: "SELECT $id, 2 * $amount AS amount;"}]
"""


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[derive.Flow]:
    with derive.open(source=write_catalog(tmp_path, CATALOG)) as flow:
        yield flow


ORDERS: list[dict[str, Any]] = [{"id": 1, "amount": 1.5}, {"id": 2, "amount": 3}]


def test_documents_are_derived_read_and_followed(flow: derive.Flow) -> None:
    assert flow.ingest("a/orders", iter(ORDERS)) == 2
    assert flow.run(local_documents=10**9) == []

    assert list(flow.collection("a/doubles")) == [{"id": 1, "amount": 3}, {"id": 2, "amount": 6}]
    doubles = flow.collection("a/doubles")
    assert doubles.latest().to_pandas()["amount"].tolist() == doubles.to_pandas()["amount"].tolist() == [3, 6]
    assert doubles.to_arrow().equals(doubles.latest().to_arrow())
    batches = list(flow.subscribe("a/doubles", timeout=0))
    assert [batch.documents for batch in batches] == [[{"id": 1, "amount": 3}, {"id": 2, "amount": 6}]]
    assert list(flow.subscribe("a/doubles", since=batches[-1].upper, timeout=0)) == []
    assert repr(flow.collection("a/doubles")) == "CollectionReader('a/doubles')"
    assert repr(flow.collection("a/doubles").latest()).startswith("Contents('a/doubles', '20")
    assert repr(flow.sql("SELECT 1 AS a, 2 AS b")) == "Rows('SELECT 1', a, b)"
    assert [(task["task"], task["state"]) for task in flow.status()] == [("a/doubles", "idle")]


def test_run_without_end_stops_at_the_event(flow: derive.Flow) -> None:
    flow.ingest("a/orders", ORDERS)
    stop = threading.Event()
    run = threading.Thread(
        target=flow.run, kwargs={"until_idle": False, "local_documents": 10**9, "stop": stop}, daemon=True
    )
    run.start()

    first = next(flow.subscribe("a/doubles"))
    flow.ingest("a/orders", [{"id": 3, "amount": 4}])
    second = next(flow.subscribe("a/doubles", since=first.upper))
    stop.set()
    run.join(PATIENCE_SECONDS)

    assert ([*first.documents, *second.documents][-1], run.is_alive()) == ({"id": 3, "amount": 8}, False)


def test_repeated_load_is_ingested_once_and_a_different_one_refused(flow: derive.Flow) -> None:
    assert [flow.ingest("a/orders", iter(ORDERS), load_id="x") for _ in range(2)] == [2, 0]
    with pytest.raises(StorageError, match="give this content another"):
        flow.ingest("a/orders", ORDERS[:1], load_id="x")


def test_writes_are_seen_by_open_readers_of_other_processes(flow: derive.Flow, tmp_path: Path) -> None:
    flow.ingest("a/orders", ORDERS[:1])
    reader = flow.collection("a/orders")
    other = derive.open(source=tmp_path / "flow.yaml")
    other.ingest("a/orders", [{"id": 9, "amount": 0, "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    other.close()
    flow.run(local_documents=10**9)

    assert list(reader) == [{"id": 1, "amount": 1.5}, {"id": 9, "amount": 0, "at": "2026-01-01T00:00:00+00:00"}]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda flow: flow.ingest("a/orders", [{"id": object()}]), DocumentError, "not JSON"),
        (lambda flow: flow.ingest("a/orders", ["x"]), DocumentError, "a document is a dict, and not of type str"),
        (lambda flow: flow.ingest("a/orders", {"id": 1}), UsageError, "one document is a list, too: [document]"),
        (lambda flow: flow.ingest("a/orders", [{}]), DocumentError, "required property"),
        (lambda flow: flow.ingest("a/doubles", []), UsageError, "is derived"),
        (lambda flow: flow.ingest("a/order", []), UsageError, "did you mean 'a/orders'"),
        (lambda flow: flow.ingest("a/orders", [], clock="at"), UsageError, "such as /at"),
        (lambda flow: flow.collection("a/orders"), UsageError, "is not a data folder"),
        (lambda flow: flow.subscribe("a/orders"), UsageError, "is not a data folder"),
        (lambda flow: flow.run(tasks=["a/double"]), UsageError, "did you mean 'a/doubles'"),
        (lambda flow: flow.run(tasks="a/doubles"), UsageError, "one name is a list, too"),
        (lambda flow: flow.sql("SELECT $1", 5), UsageError, "one value is a list, too: [value]"),
        (lambda flow: flow.sql(" "), UsageError, "no statement"),
        (lambda flow: flow.sql("SELECT x"), SqlError, 'sql:1:8: column "x" does not exist'),
        (lambda flow: flow.sql("SELECT 1;\n SELEC"), SqlError, "sql:2:2: syntax error"),
        (lambda flow: flow.sql("SELECT 'x"), SqlError, "sql:1:8"),
        (lambda flow: flow.sql("SELECT 1; SELECT 2", [1]), UsageError, "the text has 2"),
        (lambda flow: flow.sql("SELECT $1", []), UsageError, "1 parameter, and 0"),
        (lambda flow: flow.sql("SELECT $1", [object()]), UsageError, "type object is not supported"),
        (lambda flow: flow.sql("SELECT $1::int", ["x"]), SqlError, "invalid input syntax"),
        (lambda flow: list(flow.sql("SELECT 'infinity'::date")), UsageError, "Python has no date infinity"),
        (lambda flow: flow.sql("SUBSCRIBE (SELECT 1)"), UsageError, "never ends"),
        (lambda flow: flow.sql("COPY (SELECT 1) TO STDOUT"), UsageError, "need a client"),
    ],
)
def test_bad_input_is_a_flow_error(flow: derive.Flow, call: Any, error: type[FlowError], message: str) -> None:
    with pytest.raises(error) as caught:
        call(flow)

    assert message in str(caught.value)


def test_failure_of_a_task_is_raised(tmp_path: Path) -> None:
    with derive.open(source=write_catalog(tmp_path, CATALOG.replace("2 * $amount", "json($amount)"))) as flow:
        flow.ingest("a/orders", [{"id": 1, "at": "x", "amount": 1}])
        flow.ingest("a/orders", [{"id": 2}])
        with pytest.raises((LambdaError, DocumentError)):
            flow.run(local_documents=10**9)
        assert [task["state"] for task in flow.status()] == ["failed"]


def test_missing_catalog_and_folder_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a data folder"):
        derive.open(tmp_path / "data", source=tmp_path / "none.yaml")


def test_tables_of_sql_need_no_catalog(tmp_path: Path) -> None:
    Store(tmp_path / "data").close()
    with derive.open(tmp_path / "data", source=tmp_path / "none.yaml") as flow:
        flow.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        assert list(flow.collection("sql/public/t")) == [{"a": 1}]
        assert flow.status() == []
        with pytest.raises(UsageError, match="there is no catalog"):
            flow.run()


VALUES: list[tuple[str, object, object]] = [
    # type, parameter, value of a row
    ("boolean", True, True),
    ("smallint", 1, 1),
    ("integer", np.int64(70_000), 70_000),
    ("bigint", 1 << 40, 1 << 40),
    ("numeric", 10**20, Decimal(10**20)),
    ("numeric", Decimal("1.50"), Decimal("1.50")),
    ("double precision", np.float32(0.5), 0.5),
    ("text", "it's {}", "it's {}"),
    ("bytea", b"\0a", b"\0a"),
    ("jsonb", {"x": [1, None]}, {"x": [1, None]}),
    ("jsonb", [1, 2], [1, 2]),
    ("date", date(2020, 1, 2), date(2020, 1, 2)),
    ("timestamptz", datetime(2020, 1, 1, 0, 0, 0, 5, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
    ("uuid", UUID(int=5), UUID(int=5)),
    ("integer[]", [1, None], [1, None]),
    ("text[]", ["a,b", 'c"'], ["a,b", 'c"']),
    ("interval", "1 day", "1 day"),
    ("text", None, None),
]


def test_values_of_sql_are_those_of_python(flow: derive.Flow) -> None:
    chosen = ", ".join(f"${number}::{kind} AS c{number}" for number, (kind, _, _) in enumerate(VALUES, start=1))
    rows = flow.sql(f"SELECT {chosen}", [value for _, value, _ in VALUES])

    assert list(rows) == [tuple(value for _, _, value in VALUES)]
    assert (rows.tag, len(rows), rows.names[0]) == ("SELECT 1", 1, "c1")
    assert rows.to_arrow().column("c3").to_pylist() == [70_000]


@pytest.mark.skipif(find_spec("polars") is not None, reason="polars is installed")
def test_missing_polars_is_a_flow_error(flow: derive.Flow) -> None:
    with pytest.raises(UsageError, match="polars is not installed"):
        flow.sql("SELECT 1").to_polars()
