"""Evaluation from scratch gives the rows, and the types, that a real PostgreSQL gives."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_relations import PostgresQuery
from postgres_server import server
from random_relations import COLLECTIONS, RandomRelations, random_changes
from relations_sample import blanked, shown

from derive.algebra.relation import Constant, Relation
from derive.algebra.types import Datum, Row, Type
from derive.compute.oneshot import evaluate
from derive.functions.types.type_info import datum_of_text

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "30"))

DOUBLES: tuple[Datum, ...] = (0.5, 1.5, 3.5, -2.0, 0.0, float("inf"), "NaN")
"""Those whose sums are exact, as PostgreSQL's depend on the order in which values come."""


@cache
def connection() -> psycopg.Connection[Any]:
    """To a database whose texts are in the order of code points."""
    locale = "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
    with server().connect() as first:
        first.autocommit = True
        first.execute(f"CREATE DATABASE relations TEMPLATE template0 {locale}")
    connected = server().connect(dbname="relations")
    atexit.register(connected.close)
    connected.autocommit = True
    connected.execute("SET TimeZone = 'UTC'")
    return connected


def of_postgres(relation: Relation, rows: dict[int, list[Row]]) -> Counter[Row]:
    """What PostgreSQL gives for a relation."""
    query = PostgresQuery(lambda get: f"({query.select(Constant(tuple(rows[get.id]), get.types))}) AS g")
    names = [f"c{index}" for index in range(len(relation.types))]
    texts = ", ".join([f"{name}::text" for name in names] + [f"pg_typeof({name})::text" for name in names])
    reported = (
        connection().execute(f"SELECT {texts} FROM ({query.select(relation)}) AS r({', '.join(names)})").fetchall()
    )
    counts: Counter[Row] = Counter()
    for row in reported:
        values, kinds = row[: len(names)], row[len(names) :]
        assert [Type(kind) for kind in kinds] == list(relation.types)
        counts[
            tuple(
                None if text is None else datum_of_text(kind, text)
                for text, kind in zip(values, relation.types, strict=True)
            )
        ] += 1
    return counts


def of_ours(relation: Relation, rows: dict[int, list[Row]]) -> Counter[Row]:
    """What we give."""
    batches = evaluate(relation, shown(relation), lambda number, required: iter([blanked(rows[number], required)]))
    return Counter(row for batch in batches for row in batch)


def run(seed: int) -> None:
    """One random relation over random rows."""
    random = Random(seed)
    rows: dict[int, list[Row]] = {}
    for number, types in COLLECTIONS.items():
        live: list[Row] = []
        for _ in range(random.randrange(5)):
            random_changes(random, live, types, doubles=DOUBLES)
        rows[number] = live
    relation = RandomRelations(random).relation(random.randrange(1, 4))
    assert of_ours(relation, rows) == of_postgres(relation, rows), relation


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_relations_equal_postgresql(seed: int) -> None:
    """Rows, how often each is there, and types."""
    run(seed)
