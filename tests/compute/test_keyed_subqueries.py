"""Subqueries that depend on the row are recomputed for changed keys, and give the rows of a one-time evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from changing import Changing
from relations_sample import shown
from report_views import DeclaredNames, columns_of, relation_of

from derive.algebra.relation import Get
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Row
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.compute.plans.plan import Keyed, Plan, Recomputed, inputs_of
from derive.compute.plans.planning import plan_of
from derive.errors import SqlError

_COLUMNS = {"t": "a integer, b integer, c text", "u": "a integer, b integer, c text"}
_NAMES = DeclaredNames(_COLUMNS)

QUERIES = [
    "SELECT * FROM t WHERE b < (SELECT avg(u.b) FROM u WHERE u.a = t.a)",
    "SELECT * FROM t WHERE b >= (SELECT max(u.b) - 1 FROM u WHERE u.a = t.a AND u.c <> t.c)",
    "SELECT * FROM t WHERE (SELECT count(*) FROM u WHERE u.a = t.a AND u.b > 1) < 2 AND b > 0",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b <> t.b)",
    "SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b < t.b)",
    "SELECT * FROM t WHERE b NOT IN (SELECT u.b FROM u WHERE u.a = t.a)",
    "SELECT * FROM t WHERE b IN (SELECT u.b + 1 FROM u WHERE u.a = t.a AND u.b < t.b)",
    "SELECT * FROM t WHERE CASE WHEN c = 'x' THEN b > (SELECT min(u.b) FROM u WHERE u.a = t.a) ELSE b = 1 END",
    "SELECT * FROM t WHERE b = (SELECT u.b FROM u WHERE u.a = t.a ORDER BY u.b, u.c LIMIT 1)",
    "SELECT * FROM t WHERE c = (SELECT u.c FROM u WHERE u.a = t.a GROUP BY u.c HAVING count(*) > 1 ORDER BY 1 LIMIT 1)",
    "SELECT * FROM t WHERE b < (SELECT sum(v.b) FROM u v JOIN t w ON v.b = w.b WHERE v.a = t.a AND w.c = t.c)",
    "SELECT t.a, sum(t.b) FROM t WHERE b <= (SELECT max(u.b) FROM u WHERE u.a = t.a) GROUP BY t.a",
    "SELECT * FROM t WHERE b IN (SELECT u.b FROM u WHERE u.b < (SELECT sum(w.b) FROM t w WHERE w.a = u.a))",
]


def plans_of(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and all its inputs."""
    yield plan
    for source in inputs_of(plan):
        yield from plans_of(source)


@pytest.mark.parametrize("query", QUERIES)
def test_correlated_subqueries_have_keys(query: str) -> None:
    kinds = {type(plan) for plan in plans_of(plan_of(relation_of(query, _NAMES)))}

    assert Keyed in kinds
    assert Recomputed not in kinds


def check(query: str, seed: int, folder: Path) -> None:
    """Compare a view with the evaluation of its query, at each time of a random history."""
    random = Random(seed)
    kinds = [kind for _, kind in columns_of(_COLUMNS["t"])]
    collections = {1: Changing(kinds), 2: Changing(kinds)}
    live: dict[int, list[Row]] = {1: [], 2: []}
    relation = relation_of(query, _NAMES)
    instance = Instance(folder)
    for time in range(1, 8):
        for identifier, collection in collections.items():
            rows, changes = live[identifier], list[tuple[Row, int]]()
            while rows and random.random() < 0.4:
                changes.append((rows.pop(random.randrange(len(rows))), -1))
            for _ in range(random.randrange(5) if random.random() < 0.7 else 0):
                row: Row = (random.choice([1, 2, 3, None]), random.choice([0, 1, 2, None]), random.choice("xy"))
                rows.append(row)
                changes.append((row, 1))
            collection.change(time, changes)
            collection.seal(time + 1)
        if time == 2:
            inputs = {get.id: collections[get.id].since(time) for get in gets_of(relation)}
            instance.maintain(9, relation, time, inputs)
        while instance.step():
            pass
    for time in range(2, 8):
        maintained = Counter(row for batch in instance.peek(Get(9, relation.types), as_of=time) for row in batch)
        contents = {identifier: list(collection.at(time)) for identifier, collection in collections.items()}
        evaluated = evaluate(relation, shown(relation), lambda one, _, rows=contents: iter(rows[one]))  # type: ignore[misc]
        assert maintained == Counter(row for batch in evaluated for row in batch), (query, seed, time)
    instance.close()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("query", QUERIES)
def test_correlated_subqueries_equal_evaluation(query: str, tmp_path: Path) -> None:
    for seed in range(3):
        check(query, seed, tmp_path / str(seed))


def test_subqueries_that_compare_the_outer_row_with_a_constant_equal_evaluation(tmp_path: Path) -> None:
    check("SELECT * FROM t WHERE b < (SELECT sum(u.b) FROM u WHERE t.c = 'x')", 1, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3, 60))
def test_many_histories_of_correlated_subqueries_equal_evaluation(seed: int, tmp_path: Path) -> None:
    for number, query in enumerate(QUERIES):
        check(query, seed, tmp_path / str(number))


def test_error_of_a_subquery_ends_with_its_rows(tmp_path: Path) -> None:
    """The second row makes the subquery fail; other keys keep their rows."""
    query = "SELECT * FROM t WHERE b > (SELECT 6 / min(u.b) FROM u WHERE u.a = t.a)"
    kinds = [kind for _, kind in columns_of(_COLUMNS["t"])]
    collections = {1: Changing(kinds), 2: Changing(kinds)}
    collections[1].change(1, [((1, 5, "x"), 1), ((2, 9, "y"), 1)])
    collections[2].change(1, [((1, 2, "x"), 1), ((2, 1, "x"), 1)])
    collections[2].change(2, [((1, 0, "x"), 1)])
    collections[2].change(3, [((1, 0, "x"), -1)])
    for collection in collections.values():
        collection.seal(4)
    relation = relation_of(query, _NAMES)
    instance = Instance(tmp_path)
    instance.maintain(9, relation, 1, {one: collection.since(1) for one, collection in collections.items()})
    while instance.step():
        pass
    view = Get(9, relation.types)
    rows = Counter({(1, 5, "x"): 1, (2, 9, "y"): 1})

    assert Counter(row for batch in instance.peek(view, as_of=1) for row in batch) == rows
    with pytest.raises(SqlError, match="division by zero"):
        list(instance.peek(view, as_of=2))
    assert Counter(row for batch in instance.peek(view, as_of=3) for row in batch) == rows
    instance.close()
