"""`flowctl why` and `flowctl verify --replay`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import flowctl

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.storage.segments.segment_file import open_segment

BASE = 1_704_067_200_000_000
CATALOG = """
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id, customer, amount]
      properties: {id: {type: integer}, customer: {type: string}, amount: {type: number}, at: {type: string}}
  shop/spending:
    key: [/customer]
    schema:
      type: object
      required: [customer]
      reduce: {strategy: merge}
      properties:
        customer: {type: string}
        orders: {type: integer, reduce: {strategy: sum}}
        spent: {type: number, reduce: {strategy: sum}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fromOrders, source: shop/orders, shuffle: any, lambda: "SELECT $customer, 1 AS orders, $amount AS spent;"}
"""
TREE = """\
shop/spending ["ann"] as of 2024-01-01T00:00:09.999999Z
  = {"customer":"ann","orders":2,"spent":21.5}
  replayed: equal to what is stored, byte for byte (2 documents replayed, 2 in
    the same ticks)
  2024-01-01T00:00:01.000000Z  {"customer":"ann","orders":1,"spent":20}
    ⇒ {"customer":"ann","orders":1,"spent":20}
    └ by fromOrders from shop/orders [1]
        2024-01-01T00:00:01.000000Z  {"id":1,"customer":"ann","amount":20,
          "at":"2024-01-01T00:00:01.000000Z"}
        given $customer = 'ann', $amount = 20
        published {"customer":"ann","orders":1,"spent":20}
  2024-01-01T00:00:03.000000Z  {"customer":"ann","orders":1,"spent":1.5}
    ⇒ {"customer":"ann","orders":2,"spent":21.5}
    └ by fromOrders from shop/orders [3]
        2024-01-01T00:00:03.000000Z  {"id":3,"customer":"ann","amount":1.5,
          "at":"2024-01-01T00:00:03.000000Z"}
        given $customer = 'ann', $amount = 1.5
        published {"customer":"ann","orders":1,"spent":1.5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    world = World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=BASE)
    orders = [(1, "ann", 20), (2, "b\x1b[2Jen", 5.5), (3, "ann", 1.5)]
    world.ingest(
        "shop/orders",
        [
            {"id": i, "customer": who, "amount": amount, "at": format_rfc3339(BASE + i * 1_000_000)}
            for i, who, amount in orders
        ],
    )
    world.wall = BASE + 10_000_000
    world.step()
    world.store.close()
    return tmp_path


def why(folder: Path, key: str, *more: str, collection: str = "shop/spending") -> tuple[int, str, str]:
    return flowctl(folder, "why", "--collection", collection, "--key", key, *more)


def test_why_prints_a_tree_within_80_columns(folder: Path) -> None:
    status, out, err = why(folder, '["ann"]', "-o", "tree")

    assert (status, out, err) == (0, TREE, "")
    assert max(map(len, out.splitlines())) <= 80


def test_why_shows_control_characters_as_escapes(folder: Path) -> None:
    status, out, _ = why(folder, '["b\\u001b[2Jen"]', "-o", "tree")

    assert status == 0
    assert "\x1b" not in out
    assert "given $customer = 'b\\x1b[2Jen', $amount = 5.5" in out


def test_why_shows_a_part_of_a_long_document(tmp_path: Path) -> None:
    catalog = load(write_catalog(tmp_path, CATALOG))
    world = World(tmp_path / ".flow", catalog, wall=BASE)
    world.ingest(
        "shop/orders",
        [{"id": 1, "customer": "ann", "amount": 1, "at": format_rfc3339(BASE), "note": "x" * 100_000 + "end"}],
    )
    world.wall = BASE + 10_000_000
    world.step()
    world.store.close()

    status, out, _ = why(tmp_path, "1", "-o", "tree", collection="shop/orders")

    assert status == 0
    assert len(out) < 20_000
    assert "characters left out; -o json has all" in " ".join(out.split())
    assert 'xend"' in out


def test_why_writes_json_without_a_terminal(folder: Path) -> None:
    status, out, _ = why(folder, "ann", "--as-of", "2024-01-01T00:00:02Z")
    written = json.loads(out)

    assert status == 0
    assert (written["key"], written["value"]) == (["ann"], {"customer": "ann", "orders": 1, "spent": 20})
    assert (written["equal"], written["replayed"], written["as_of"]) == (True, 1, "2024-01-01T00:00:02.000000Z")
    ((cause,),) = (document["causes"] for document in written["documents"])
    assert cause["given"] == {"$customer": "ann", "$amount": 20}


def test_why_of_an_ingested_document_shows_its_time(folder: Path) -> None:
    status, out, _ = why(folder, "2", "-o", "tree", collection="shop/orders")

    assert status == 0
    assert "  ingested 2024-01-01T00:00:02.000000Z" in out


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("collection", "key", "more", "expected"),
    [
        ("shop/spendin", "ann", (), "the catalog has no collection 'shop/spendin'\n  = did you mean 'shop/spending'?"),
        ("shop/spending", '["anna"]', (), 'has the key ["anna"]\n  = did you mean \'["ann"]\'?'),
        ("shop/orders", '["2"]', (), "has the key [\"2\"]\n  = did you mean '[2]'?"),
        ("shop/orders", "200", (), "has the key [200]\n  = one key is '[1]'"),
        (
            "shop/orders",
            "3",
            ("--as-of", "2024-01-01T00:00:02Z"),
            "02.000000Z has the key [3]\n  = its first document has the time 2024-01-01T00:00:03.000000Z: give this",
        ),
        (
            "shop/spending",
            '["ann", 1]',
            (),
            "is not a key of 'shop/spending'\n  = a key is a JSON array with a value for each of [/customer]",
        ),
        ("shop/spending", '["ann"', (), "--key is not JSON"),
        (
            "shop/spending",
            "[ann]",
            (),
            "with a value for each of [/customer], and texts have quotes: --key '[\"ann\"]'",
        ),
        ("shop/spending", "\udcff", (), "error: the argument '\\udcff' is not valid UTF-8"),
        ("shop/orders", "1" + 30 * "0", (), f"has the key [1{30 * '0'}]\n  = "),
        ("shop/spending", "ann", ("--as-of", "2030-01-01T00:00:00Z"), "\n  = leave out --as-of to explain"),
    ],
)
def test_why_of_an_unknown_document_has_a_hint(
    folder: Path, collection: str, key: str, more: tuple[str, ...], expected: str
) -> None:
    status, out, err = why(folder, key, *more, collection=collection)

    assert (status in (1, 2), out) == (True, "")
    assert expected in err


@pytest.mark.parametrize(
    ("collection", "hint"),
    [
        ("shop/orders", "ingest documents: flowctl ingest --collection shop/orders FILE"),
        ("shop/spending", "ingest its sources, and derive it: flowctl run --until-idle"),
    ],
)
def test_why_of_an_empty_collection_has_a_hint(tmp_path: Path, collection: str, hint: str) -> None:
    World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=BASE).store.close()

    status, _, err = why(tmp_path, "1", collection=collection)

    assert (status, err) == (2, f"error: nothing is stored in '{collection}' yet\n  = {hint}\n")


def test_verify_replays_all_documents(folder: Path) -> None:
    status, out, err = flowctl(folder, "verify", "--replay", "--collection", "shop/spending")

    assert (status, out) == (0, "")
    assert "every stored document is equal to its replay" in err


def test_verify_and_why_find_a_stored_document_that_differs(folder: Path) -> None:
    world = World(folder / ".flow", load(folder / "flow.yaml"))
    (segment,) = world.store.segments(world.catalog.collections["shop/orders"])
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_segment(world.root, segment) as file:
        table = file.read()
    texts = [text.replace('"amount":20', '"amount":21') for text in table.column("doc").to_pylist()]
    changed = table.set_column(table.schema.get_field_index("doc"), table.schema.field("doc"), pa.array(texts))
    amounts = pa.array([21.0, 5.5, 1.5])
    changed = changed.set_column(changed.schema.get_field_index("amount"), changed.schema.field("amount"), amounts)
    pq.write_table(changed, world.root / segment.path, write_page_checksum=True)
    world.store.close()

    status, out, err = flowctl(folder, "verify", "--replay")
    row = json.loads(out)
    assert status == 1
    assert (row["key"], row["stored"]) == ('["ann"]', '{"customer":"ann","orders":1,"spent":20}')
    assert row["replayed"] == '{"customer":"ann","orders":1,"spent":21}'
    assert "documents differ in 1 of 1 collection" in err

    status, out, _ = why(folder, "ann", "-o", "tree")
    assert status == 1
    assert "replayed: NOT equal to what is stored" in out
    assert "reason: no reason is known" in out


def test_verify_finds_a_column_that_differs_from_its_document(folder: Path) -> None:
    world = World(folder / ".flow", load(folder / "flow.yaml"))
    (segment,) = world.store.segments(world.catalog.collections["shop/spending"])
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_segment(world.root, segment) as file:
        table = file.read()
    spent = pa.array([20.0 if value == 5.5 else value for value in table.column("spent").to_pylist()])
    changed = table.set_column(table.schema.get_field_index("spent"), table.schema.field("spent"), spent)
    pq.write_table(changed, world.root / segment.path, write_page_checksum=True)
    world.store.close()

    status, out, _ = flowctl(folder, "verify", "--replay")
    row = json.loads(out)

    assert status == 1
    assert (row["kind"], row["key"]) == ("column", '["b\\u001b[2Jen"]')
    assert (row["stored"], row["replayed"]) == ("spent: 20.0", "spent: 5.5")


def test_verify_refuses_a_collection_without_replay(folder: Path) -> None:
    status, _, err = flowctl(folder, "verify", "--collection", "shop/spending")

    assert (status, "--collection needs --replay" in err) == (2, True)
