"""Law L6 over random schemas, and every value against the oracle."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import Any

from conftest import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_reducer import GONE, Misfit, fold
from random_schemas import associative_histories, histories

from derive.document.pointer import MISSING
from derive.errors import ReductionError, SchemaError
from derive.reduce.combiner import Combiner

PATIENT = settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def text(value: Any) -> str:
    """Equal for equal values only: 1 is neither 1.0 nor true."""
    return "" if value is MISSING or value is GONE else json.dumps(value, sort_keys=True)


def oracle(schema: Any, documents: list[Any]) -> str | None:
    try:
        return text(fold(schema, documents))
    except Misfit:
        return None


@PATIENT
@given(histories(fitting=True), st.data())
def test_l6_random_partial_reductions_in_order_equal_one_fold(
    history: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    schema, documents = history
    expected = oracle(schema, documents)
    if expected is None:
        return
    combiner = Combiner(schema)
    copies = json.dumps(documents)

    assert text(combiner.full(documents)) == expected
    for begin, end in combinations(range(len(documents) + 1), 2):
        part = combiner.partial(documents[begin:end])
        assert text(combiner.full([*documents[:begin], *part, *documents[end:]])) == expected
    partial = documents
    for _ in range(2):  # and parts of parts
        cut = sorted(data.draw(st.sets(st.integers(1, len(partial)))) | {0, len(partial)})
        partial = [each for begin, end in pairwise(cut) for each in combiner.partial(partial[begin:end])]
    assert text(combiner.full(partial)) == expected
    assert json.dumps(documents) == copies


@given(associative_histories())
def test_associative_histories_reduce_to_one_document(history: tuple[Any, list[Any]]) -> None:
    schema, documents = history
    combiner = Combiner(schema)
    partial = combiner.partial(documents)

    assert len(partial) == 1
    assert text(combiner.full(partial)) == oracle(schema, documents)


@PATIENT
@given(histories(fitting=False))
def test_fold_agrees_with_its_definition(history: tuple[Any, list[Any]]) -> None:
    schema, documents = history
    expected = oracle(schema, documents)
    try:
        found = text(Combiner(schema).full(documents))
    except (ReductionError, SchemaError):
        found = None

    assert found == expected
