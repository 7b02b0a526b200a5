"""Explanations of rows of SQL views: the sources, conditions and numbers of the rows that a row follows from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sql_world import Client, SqlWorld, derive_all, ingest

from derive.errors import FlowError, FrontierError, SqlError, UsageError
from derive.sql.catalog.snapshot import stored_objects
from derive.sql.coordinator import Coordinator
from derive.storage.store import Store
from derive.why.views import ExplainedRow, ViewExplainer

STATEMENTS = """
CREATE TABLE regions (customer text, region text)
INSERT INTO regions VALUES ('ann', 'north'), ('dan', 'south'), (NULL, 'west')
CREATE VIEW totals AS SELECT customer, count(*) AS n, sum(amount) AS total FROM "shop/orders" GROUP BY customer
CREATE MATERIALIZED VIEW kept AS SELECT customer FROM regions EXCEPT SELECT customer FROM totals
CREATE VIEW reached AS SELECT r.region, t.total FROM regions r LEFT JOIN totals t ON r.customer = t.customer
CREATE VIEW known AS SELECT region, (SELECT count(*) FROM "shop/orders" o WHERE o.customer = r.customer) AS orders \
  FROM regions r WHERE r.customer IN (SELECT customer FROM "shop/orders" WHERE amount > 1)
CREATE VIEW least AS SELECT id FROM "shop/orders" ORDER BY amount LIMIT 1
CREATE VIEW ranked AS SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount) AS place FROM "shop/orders"
CREATE VIEW twice AS SELECT customer FROM regions UNION ALL SELECT customer FROM regions
CREATE VIEW steps AS WITH RECURSIVE s (c, n) AS (SELECT customer, 1 FROM regions UNION ALL \
  SELECT c, n + 1 FROM s WHERE n < 3) SELECT c, max(n) AS m FROM s GROUP BY c
CREATE VIEW inverse AS SELECT 6 / id AS half FROM "shop/orders" WHERE id <> 0
CREATE VIEW everything AS SELECT count(*) AS n FROM "shop/orders" CROSS JOIN regions
CREATE VIEW one AS SELECT 1 AS n
CREATE VIEW names AS SELECT relname FROM pg_class
"""


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewExplainer]:
    world = SqlWorld(tmp_path_factory.mktemp("views"))

    async def fill(coordinator: Coordinator) -> None:
        ingest(coordinator, [(1, "ann", 20), (2, "ben", 5.5), (3, "ann", 1.5), (0, "eve", 1)], year=2024)
        await asyncio.to_thread(derive_all, world, coordinator)
        client = Client(coordinator)
        for statement in STATEMENTS.replace("\\\n", "").strip().splitlines():
            await client(statement)

    world.within(fill)
    store = Store(world.data, reading=True)
    yield ViewExplainer(store, stored_objects(*store.sql_catalog.read(), store.tables, world.catalog))
    store.close()


def explained(explainer: ViewExplainer, view: str, condition: str = "", as_of: int | None = None) -> ExplainedRow:
    return explainer.explain(view, condition, as_of, most=10)


@pytest.mark.parametrize(
    ("view", "condition", "expected"),
    [
        ("public.totals", "n = 2", [("shop/orders", "customer = 'ann'", 2)]),
        ("TOTALS", "total = 5.5", [("shop/orders", "customer = 'ben'", 1)]),
        ("sql/public/totals", "customer = 'ann'", [("shop/orders", "customer = 'ann'", 2)]),
        (
            "kept",
            "customer IS NULL",
            [("public.regions", "customer IS NULL", 1), ("shop/orders", "customer IS NULL", 0)],
        ),
        ("reached", "region = 'north'", [("public.regions", "", 1), ("shop/orders", "customer = 'ann'", 2)]),
        ("reached", "region = 'south'", [("public.regions", "", 1), ("shop/orders", "customer = 'dan'", 0)]),
        (
            "known",
            "",
            [
                ("public.regions", "", 1),
                ("shop/orders", "(customer = 'ann' OR customer IS NULL) AND amount > 1", 2),
                ("shop/orders", "customer = 'ann'", 2),
            ],
        ),
        ("least", "", [("shop/orders", "", 4)]),
        ("ranked", "id = 3", [("shop/orders", "customer = 'ann'", 2)]),
        ("twice", "customer = 'dan'", [("public.regions", "customer = 'dan'", 1)]),
        ("steps", "c = 'ann'", [("public.regions", "", 3)]),
        ("inverse", "half = 3", [("shop/orders", "", 1)]),
        ("everything", "", [("shop/orders", "", 4), ("public.regions", "", 3)]),
    ],
)
def test_view_explainer_finds_the_rows_that_a_row_follows_from(
    explainer: ViewExplainer, view: str, condition: str, expected: list[tuple[str, str, int]]
) -> None:
    found = explained(explainer, view, condition)

    assert [(source.name, source.condition, source.count) for source in found.sources] == expected
    assert found.is_equal
    assert all(len(source.rows) == source.count for source in found.sources)


def test_view_explainer_marks_whole_and_missing_sources(explainer: ViewExplainer) -> None:
    least, reached = explained(explainer, "least"), explained(explainer, "reached", "region = 'south'")

    assert [source.is_whole for source in least.sources] == [True]
    assert [(source.is_whole, source.is_absence) for source in reached.sources] == [(False, False), (False, True)]


def test_view_explainer_shows_the_latest_documents(explainer: ViewExplainer) -> None:
    (source,) = explainer.explain("least", "", None, most=2).sources

    assert [source.document(row) for row in source.rows] == [
        {"id": 3, "customer": "ann", "amount": 1.5, "at": "2024-01-01T00:00:02Z"},
        {"id": 0, "customer": "eve", "amount": 1, "at": "2024-01-01T00:00:03Z"},
    ]
    assert source.count == 4


def test_view_explainer_compares_a_materialized_view_with_its_stored_rows(explainer: ViewExplainer) -> None:
    kept = explained(explainer, "kept", "customer IS NULL")

    assert (kept.is_equal, kept.is_stored) == (True, True)
    assert explained(explainer, "totals", "n = 2").is_stored is None


def test_view_explainer_explains_a_row_of_literals(explainer: ViewExplainer) -> None:
    one = explained(explainer, "one")

    assert (one.row, one.sources, one.is_equal) == ((1,), (), True)


def test_view_explainer_counts_copies(explainer: ViewExplainer) -> None:
    assert explained(explainer, "twice", "customer = 'ann'").copies == 2


def test_view_explainer_explains_a_row_of_an_earlier_time(explainer: ViewExplainer) -> None:
    (source,) = explained(explainer, "totals", "customer = 'ann'", as_of=1_704_067_200_000_000).sources

    assert source.count == 1


@pytest.mark.parametrize(
    ("view", "condition", "as_of", "kind", "expected"),
    [
        ("totals", "", None, UsageError, "3 different rows of 'public.totals' fulfil the condition"),
        ("totals", "n = 9", None, UsageError, "no row of 'public.totals' at "),
        ("totals", "m = 9", None, SqlError, 'column "m" does not exist'),
        ("totals", "", 4_000_000_000_000_000, FrontierError, "'shop/orders' is final only before "),
        ("kept", "", 1_704_067_200_000_000, FrontierError, "the history of 'public.regions' begins at "),
        ("total", "", None, SqlError, 'relation "total" does not exist'),
        ("regions", "", None, UsageError, "'regions' is a table and no view"),
        ('"shop/orders"', "", None, UsageError, "'shop/orders' is a collection and no view"),
        ("names", "", None, UsageError, "'names' reads system relations or values of the session"),
        ("a b", "", None, SqlError, "syntax error"),
    ],
)
def test_view_explainer_refuses_views_and_conditions_without_one_row(
    explainer: ViewExplainer, view: str, condition: str, as_of: int | None, kind: type[FlowError], expected: str
) -> None:
    with pytest.raises(kind) as caught:
        explained(explainer, view, condition, as_of)

    assert expected in caught.value.message


def test_error_of_a_wrong_name_has_no_place_in_the_condition(explainer: ViewExplainer) -> None:
    with pytest.raises(SqlError) as caught:
        explained(explainer, "total", "n = 1")

    assert caught.value.offset is None
