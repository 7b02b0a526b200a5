"""What reducing does to a single document: where the schema says nothing happens, nothing happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schemas import histories

from derive.document.exact import dump_exact
from derive.errors import ReductionError
from derive.reduce.combiner import Combiner

MERGE = {"strategy": "merge"}


def reduced(combiner: Combiner, documents: list[Any]) -> bytes | None:
    try:
        return dump_exact(combiner.full(documents))
    except (ReductionError, TypeError):  # a document that does not fit, or one that is deleted
        return None


@given(st.booleans().flatmap(lambda fitting: histories(fitting=fitting)))
def test_shortcuts_of_a_combiner_equal_the_full_reduction(drawn: tuple[Any, list[Any]]) -> None:
    schema, values = drawn
    root = {"reduce": MERGE, "properties": {"v": schema}, "$defs": schema["$defs"]}
    for combiner, documents in ((Combiner(root), [{"v": value} for value in values]), (Combiner(schema), values)):
        objects = [document for document in documents if isinstance(document, dict)]
        if combiner.keeps_single:
            assert [reduced(combiner, [document]) for document in objects] == list(map(dump_exact, objects))
        if combiner.takes_last and objects:
            assert reduced(combiner, objects) == dump_exact(objects[-1])


@pytest.mark.parametrize(
    ("schema", "takes_last", "keeps_single"),
    [
        ({}, True, True),
        ({"reduce": {"strategy": "lastWriteWins", "associative": False}}, True, True),
        ({"reduce": {"strategy": "lastWriteWins", "delete": True}}, False, False),
        ({"reduce": {"strategy": "firstWriteWins"}}, False, True),
        ({"reduce": {"strategy": "maximize"}}, False, True),
        ({"reduce": {"strategy": "maximize", "key": ["/n"]}}, False, False),
        ({"reduce": MERGE}, False, True),
        ({"reduce": MERGE, "properties": {"n": {"reduce": {"strategy": "firstWriteWins"}}}}, False, True),
        ({"reduce": MERGE, "properties": {"n": {"reduce": {"strategy": "sum"}}}}, False, False),  # n may be no number
        ({"reduce": MERGE, "properties": {"n": {"reduce": MERGE}}}, False, False),
        ({"reduce": MERGE, "additionalProperties": {"reduce": {"strategy": "sum"}}}, False, False),
        ({"reduce": MERGE, "patternProperties": {"^n": {"reduce": {"strategy": "sum"}}}}, False, False),
        ({"reduce": {"strategy": "merge", "delete": True}}, False, False),
        ({"if": {"required": ["n"]}, "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}}}, False, False),
    ],
)
def test_combiner_knows_whether_single_documents_stay_unchanged(
    schema: Any, takes_last: bool, keeps_single: bool
) -> None:
    combiner = Combiner(schema)

    assert (combiner.takes_last, combiner.keeps_single) == (takes_last, keeps_single)
