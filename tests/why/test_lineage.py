"""Lineage: the traced rows are enough to compute a row again, and of some views no other row is needed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from random_relations import COLLECTIONS, RandomRelations, random_changes
from relations_sample import shown

from derive.algebra.expression import Subquery
from derive.algebra.relation import Constant, Filter, OuterJoin, Reduce, Relation, SetOperation, TopK, Window
from derive.algebra.types import Row
from derive.compute.oneshot import evaluate
from derive.why.lineage import Lineage, is_one_of, lineage_of

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "30"))

Contents = Mapping[int, Sequence[Row]]


def rows_of(relation: Relation, contents: Contents) -> Counter[Row]:
    """The rows of a relation."""
    batches = evaluate(relation, shown(relation), lambda number, _: iter([list(contents[number])]))
    return Counter(row for batch in batches for row in batch)


def traced(relation: Relation, row: Row, contents: Contents) -> tuple[Lineage, dict[int, list[Row]]]:
    """The lineage of a row, and the rows of each of its leaves by place."""

    def computed(part: Relation) -> Iterator[Sequence[Row]]:
        return evaluate(part, shown(part), lambda number, _: iter([list(contents[number])]))

    lineage = lineage_of(relation, row, computed)
    return lineage, {leaf.place.id: list(rows_of(leaf.rows, contents).elements()) for leaf in lineage.leaves}


def is_monotone(node: Any) -> bool:
    """Whether more rows of its inputs only add rows to a relation."""
    if isinstance(node, SetOperation | Reduce | Window | TopK | OuterJoin | Subquery):
        return False
    if isinstance(node, tuple):
        return all(map(is_monotone, node))
    if is_dataclass(node) and not isinstance(node, Constant):
        return all(is_monotone(getattr(node, item.name)) for item in fields(node))
    return True


def world(seed: int, *, is_simple: bool = False) -> tuple[Random, Relation, Contents]:
    random = Random(seed)
    relations = RandomRelations(random)
    relation = relations.relation(random.randrange(1, 4))
    while is_simple and not is_monotone(relation):
        relation = relations.relation(random.randrange(1, 4))
    contents: dict[int, list[Row]] = {number: [] for number in COLLECTIONS}
    for _ in range(4):
        for number, types in COLLECTIONS.items():
            random_changes(random, contents[number], types)
    return random, relation, contents


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_restricted_relation_has_the_row_from_the_traced_rows(seed: int) -> None:
    """Over the traced rows alone, a view that is restricted to a row has it as often as the view has it."""
    random, relation, contents = world(seed)
    expected = rows_of(relation, contents)
    for row in random.sample(sorted(expected, key=repr), min(3, len(expected))):
        lineage, leaves = traced(relation, row, contents)

        assert rows_of(lineage.restricted, leaves) == _equal_rows(relation, row, contents), (relation, row)
        for leaf in lineage.leaves:
            assert not Counter(leaves[leaf.place.id]) - Counter(contents[leaf.get.id])


def _equal_rows(relation: Relation, row: Row, contents: Contents) -> Counter[Row]:
    """The rows of a relation that are equal to a row for SQL: 0 and -0 are."""
    conditions = is_one_of([*map(_column, range(len(row)), relation.types)], [row])
    for condition in conditions:
        relation = Filter(relation, condition)
    return rows_of(relation, contents)


def _column(index: int, kind: Any) -> Any:
    from derive.algebra.expression import Column

    return Column(index, kind)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_monotone_view_over_the_traced_rows_has_the_row(seed: int) -> None:
    """A view without groups and differences has the row as often, if its sources have the traced rows alone."""
    random, relation, contents = world(seed, is_simple=True)
    expected = rows_of(relation, contents)
    for row in random.sample(sorted(expected, key=repr), min(3, len(expected))):
        lineage, leaves = traced(relation, row, contents)
        kept: dict[int, Counter[Row]] = {number: Counter() for number in contents}
        for leaf in lineage.leaves:
            kept[leaf.get.id] |= Counter(leaves[leaf.place.id])
        sources = {number: list(rows.elements()) for number, rows in kept.items()}

        assert rows_of(relation, sources)[row] == expected[row], (relation, row)
