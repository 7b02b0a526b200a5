"""`flowctl why --view`: rows of SQL views, from outside."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import World, write_catalog
from forked_flowctl import flowctl
from test_why import BASE, CATALOG

from derive.catalog import load
from derive.document.clock import format_rfc3339

VIEWS = """
CREATE TABLE regions (customer text, region text);
CREATE VIEW report AS
  SELECT t.customer, t.total, r.region, s.spent
  FROM (SELECT customer, sum(amount) AS total FROM "shop/orders" GROUP BY customer) t
  JOIN "shop/spending" s ON s.customer = t.customer LEFT JOIN regions r ON r.customer = t.customer;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    world = World(folder / ".flow", load(write_catalog(folder, CATALOG)), wall=BASE)
    orders = [(1, "ann", 20), (2, "ben", 5.5), (3, "ann", 1.5)]
    documents = [
        {"id": i, "customer": who, "amount": amount, "at": format_rfc3339(BASE + i * 1_000_000)}
        for i, who, amount in orders
    ]
    world.ingest("shop/orders", documents)
    world.step()
    world.store.close()
    assert flowctl(folder, "sql", text=VIEWS)[:2] == (0, "")
    world = World(folder / ".flow", world.catalog)
    world.step()
    world.store.close()
    return folder


def why(folder: Path, view: str, *more: str) -> tuple[int, str, str]:
    return flowctl(folder, "why", "--view", view, *more)


def test_why_prints_the_tree_of_a_row(folder: Path) -> None:
    status, out, err = why(folder, "report", "--row", '{"customer": "ben"}', "-o", "tree")
    head, *lines = out.splitlines()

    assert (status, err) == (0, "")
    assert head.startswith("a row of public.report as of ")
    assert (
        "\n".join(lines)
        == """\
  = {"customer":"ben","total":5.5,"region":null,"spent":5.5}
  computed again from 2 rows: equal
  └ 1 row of shop/orders with customer = 'ben'
      2024-01-01T00:00:02.000000Z  {"at":"2024-01-01T00:00:02.000000Z","id":2,
        "amount":5.5,"customer":"ben"}
  └ 1 row of shop/spending
      2024-01-01T00:00:02.000000Z
        = {"customer":"ben","orders":1,"spent":5.5}
        replayed: equal to what is stored, byte for byte (1 document replayed, 1
          in the same ticks)
        2024-01-01T00:00:02.000000Z  {"customer":"ben","orders":1,"spent":5.5}
          └ by fromOrders from shop/orders [2]
              2024-01-01T00:00:02.000000Z  {"id":2,"customer":"ben",
                "amount":5.5,"at":"2024-01-01T00:00:02.000000Z"}
              given $customer = 'ben', $amount = 5.5
              published {"customer":"ben","orders":1,"spent":5.5}
  └ no partner in public.regions: no row with customer = 'ben'"""
    )


def test_why_writes_a_row_as_json(folder: Path) -> None:
    status, out, _ = why(folder, "report", "--where", "total = 21.5", "--limit", "1", "--depth", "0")
    written = json.loads(out)
    orders, spending, regions = written.pop("sources")

    assert status == 0
    assert (written["view"], written["copies"], written["equal"]) == ("public.report", 1, True)
    assert written["row"] == {"customer": "ann", "total": 21.5, "region": None, "spent": 21.5}
    assert (orders["name"], orders["condition"], orders["rows"]) == ("shop/orders", "customer = 'ann'", 2)
    assert [shown["row"]["id"] for shown in orders["shown"]] == [3]
    assert (spending["rows"], spending["shown"][0]["why"]) == (1, None)
    assert (regions["name"], regions["missing"], regions["shown"]) == ("public.regions", True, [])


def test_why_requires_a_document_or_a_row(folder: Path) -> None:
    for arguments, expected in (
        ((), "--collection is missing"),
        (("--where", "true"), "--row and --where choose a row of a view\n  = name the view with --view"),
        (("--view", "report", "--key", "[1]"), "--view, --row and --where a row: not both"),
        (("--view", "report", "--row", "[1]"), "--row [1] is no JSON object"),
        (("--collection", "sql/public/regions", "--key", "1"), "flowctl why --view sql/public/regions --row"),
    ):
        status, _, err = flowctl(folder, "why", *arguments)

        assert status == 2
        assert expected in err


def test_why_shows_the_place_of_a_wrong_condition(folder: Path) -> None:
    status, _, err = why(folder, "report", "--where", "total = 1 AND m = 9")

    assert status == 1
    assert 'column "m" does not exist\n  --> the condition:1:16\n1 | (total = 1 AND m = 9)\n' in err


def test_why_draws_a_row(folder: Path) -> None:
    question = ("--row", '{"customer": "ben"}')
    _, dot, _ = why(folder, "report", *question, "-o", "dot")
    _, svg, _ = why(folder, "report", *question, "-o", "svg")

    assert dot.startswith("digraph catalog {")
    assert "label=\"no partner in public.regions: no row with customer = 'ben'\"" in dot
    assert "[label=\"fromOrders\\ngiven $customer = 'ben', $amount = 5.5\\n" in dot
    assert dot.count(" -> ") == 5
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_why_draws_a_document(folder: Path) -> None:
    status, out, err = flowctl(folder, "why", "--collection", "shop/spending", "--key", '["ann"]', "-o", "mermaid")
    nodes = [line for line in out.splitlines() if "-->" not in line]

    assert (status, err) == (0, "")
    assert nodes[0] == "flowchart LR"
    assert [line.partition("<br>")[0] for line in nodes[1:]] == [
        '  n0["shop/orders #91;1#93; at 2024-01-01T00:00:01.000000Z',
        '  n1[["shop/spending #91;#34;ann#34;#93; at 2024-01-01T00:00:01.000000Z',
        '  n2["shop/orders #91;3#93; at 2024-01-01T00:00:03.000000Z',
        '  n3[["shop/spending #91;#34;ann#34;#93; at 2024-01-01T00:00:03.000000Z',
        '  n4[["shop/spending #91;#34;ann#34;#93;',
    ]
    assert [line.partition("|")[0] for line in out.splitlines() if "-->" in line] == [
        f"  n{source} -->" for source in (0, 2, 1, 3)
    ]


@pytest.mark.parametrize("view", ["report", "public.report"])
def test_why_of_a_view_as_a_collection_names_the_option_of_views(view: str, folder: Path) -> None:
    status, _, err = flowctl(folder, "why", "--collection", view, "--key", "[1]")
    assert (status, f"'{view}' is a view of SQL" in err, f"flowctl why --view {view} --row" in err) == (2, True, True)
