"""An error in a catalog's test stops tests, and nothing that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load, load_without_tests
from derive.errors import CatalogError

CATALOG = """
collections:
  a/numbers: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
tests:
  a/test:
    - ingest: {collection: a/numbers, documents: [{id: 1}]}
    - verify: {collection: a/numbers, documents: [{id: 1}]}
"""
WRONG = {
    "a document that is invalid": ("documents: [{id: 1}]", "documents: [{id: one}]"),
    "documents out of order": ("- verify: {collection: a/numbers, documents: [{id: 1}]}", "- verify: {collection: a/numbers, documents: [{id: 2}, {id: 1}]}"),
    "an unknown collection": ("- verify: {collection: a/numbers", "- verify: {collection: a/number"),
    "documents that are no array": ("documents: [{id: 1}]", "documents: {id: 1}"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_of_tests_stop_tests_alone(wrong: str, tmp_path: Path) -> None:
    source = write_catalog(tmp_path, CATALOG.replace(*WRONG[wrong], 1))

    with pytest.raises(CatalogError):
        load(source)
    catalog = load_without_tests(source)

    assert list(catalog.collections) == ["a/numbers"]
    assert catalog.tests == {}


def test_errors_beside_those_of_tests_are_told_without_them(tmp_path: Path) -> None:
    wrong = "collections:\n  a/wrong: {schema: {type: object, properties: {id: {type: integer}}}, key: [/other]}\n"
    text = CATALOG.replace("documents: [{id: 1}]", "documents: [{id: one}]", 1).replace("collections:\n", wrong, 1)
    source = write_catalog(tmp_path, text)

    with pytest.raises(CatalogError) as all_issues:
        load(source)
    with pytest.raises(CatalogError) as issues:
        load_without_tests(source)

    of_tests = set(all_issues.value.issues) - set(issues.value.issues)
    assert {issue.code for issue in of_tests} == {"E604"}
    assert "/other" in issues.value.issues[0].message
