"""Which expected document of a verify step is held against which actual one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from derive.document.key import compile_key
from derive.document.pointer import JSON, MISSING
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.testing import mismatches, pair_documents

ONE, TWO, THREE = ({"id": each, "n": each * 10} for each in (1, 2, 3))


@pytest.fixture
def collections(catalog_of: Callable[..., CatalogSpec]) -> Mapping[str, CollectionSpec]:
    properties = "{id: {type: [integer, 'null']}, at: {type: string, default: here}, n: {type: integer}}"
    return catalog_of(
        f"""
        collections:
          a/one: {{schema: {{type: object, properties: {properties}}}, key: [/id]}}
          a/two: {{schema: {{type: object, properties: {properties}}}, key: [/id, /at]}}
        """
    ).collections


@pytest.mark.parametrize(
    ("expected", "actual", "pairs"),
    [
        # by key, whatever the order of what is there
        ([ONE, TWO], [TWO, ONE], [("[1]", ONE, ONE), ("[2]", TWO, TWO)]),
        ([ONE, THREE], [ONE, TWO], [("[1]", ONE, ONE), ("[2]", MISSING, TWO), ("[3]", THREE, MISSING)]),
        # without keys, in key order
        ([{"n": 10}, {"n": 20}], [ONE, TWO], [("[1]", {"n": 10}, ONE), ("[2]", {"n": 20}, TWO)]),
        ([{"n": 20}, {"n": 10}], [ONE, TWO], [("[1]", {"n": 20}, ONE), ("[2]", {"n": 10}, TWO)]),
        ([{}], [ONE, TWO], [("[1]", {}, ONE), ("[2]", MISSING, TWO)]),
        ([{}, {"n": 5}], [ONE], [("[1]", {}, ONE), ("document 2", {"n": 5}, MISSING)]),
        # both: a key goes first, the rest in key order
        ([{"n": 30}, ONE, TWO], [ONE, TWO, THREE], [("[1]", ONE, ONE), ("[2]", TWO, TWO), ("[3]", {"n": 30}, THREE)]),
        ([ONE, {}, THREE], [ONE, TWO], [("[1]", ONE, ONE), ("[2]", {}, TWO), ("[3]", THREE, MISSING)]),
        # a key that is null is there; a key stands for one document
        ([{"id": None}], [{"n": 1}], [("[null]", {"id": None}, {"n": 1})]),
        ([ONE, ONE], [ONE], [("[1]", ONE, ONE), ("[1]", ONE, MISSING)]),
        ([], [ONE], [("[1]", MISSING, ONE)]),
        ([], [], []),
    ],
)
def test_documents_are_paired_by_key(
    collections: Mapping[str, CollectionSpec], expected: Any, actual: Any, pairs: Any
) -> None:
    assert paired(collections["a/one"], expected, actual) == pairs


@pytest.mark.parametrize(
    ("name", "produced", "lines"),
    [
        ("a/one", ONE, []),
        ("a/one", {"id": None}, []),
        ("a/one", {"n": 1}, ["          /id of the key has no value: publish one, and name it in 'required'"]),
        ("a/two", {"n": 1}, ["                 /id of the key has no value: publish one, and name it in 'required'"]),
    ],
)
def test_surplus_document_without_a_field_of_the_key_has_a_next_step(
    collections: Mapping[str, CollectionSpec], name: str, produced: JSON, lines: list[str]
) -> None:
    spec = collections[name]
    key = compile_key(spec.key, spec.key_defaults)(produced)

    (mismatch,) = mismatches(spec, [], {key: produced}, strict=False)

    assert mismatch.lines()[1:] == lines
    assert not any("of the key" in line for line in next(mismatches(spec, [ONE], {}, strict=False)).lines())


def test_document_with_a_partial_key_is_paired_without_it(collections: Mapping[str, CollectionSpec]) -> None:
    here, there = {"id": 1}, {"id": 1, "at": "there"}

    assert paired(collections["a/two"], [here, there], [there, here]) == [
        ('[1,"here"]', here, here),
        ('[1,"there"]', there, there),
    ]
    assert paired(collections["a/two"], [here], [there]) == [('[1,"there"]', here, there)]


def paired(spec: CollectionSpec, expected: Any, actual: Any) -> list[tuple[str, Any, Any]]:
    pack = compile_key(spec.key, spec.key_defaults)
    pairs = pair_documents(spec, expected, {pack(document): document for document in actual})
    return [(pair.name, pair.expected, pair.actual) for pair in pairs]
