"""The official JSON Schema test suite, draft 2020-12: every test it has, formats and optional ones included.

Where this project deliberately differs, the test is listed here, and is asserted to differ.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shape_oracle import allows

from derive.document.pointer import JSON
from derive.errors import SchemaError
from derive.schema.bundle import bundle
from derive.schema.shape import infer
from derive.schema.validator import Validator

SUITE = json.loads(
    lzma.decompress((Path(__file__).parent / "json-schema-test-suite" / "draft2020-12.json.xz").read_bytes())
)
TESTS: dict[str, list[dict[str, Any]]] = SUITE["tests"]

# Formats are assertions: what the draft only annotates, and this project refuses.
FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
)  # fmt: skip
ASSERTED = {("format", f"{name} format", f"invalid {name} string is only an annotation by default") for name in FORMATS}
DIFFERENT = ASSERTED | {
    # A meta-schema of one's own may leave vocabularies out; here the draft's always apply.
    (
        "vocabulary",
        "schema that uses custom metaschema with with no validation vocabulary",
        "no validation: invalid number, but it still validates",
    )
}


def wrong(file: str, schema: JSON, case: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The tests of a case that turn out other than the suite says."""
    validator = Validator(schema, file)
    return [
        (file, case["description"], test["description"])
        for test in case["tests"]
        if validator.is_valid(test["data"]) is not test["valid"]
    ]


# A bundle is one schema of one draft: a part of another draft is read as if it were of this one.
MIXED = (
    "optional/cross-draft",
    "refs to historic drafts are processed as historic drafts",
    "first item not a string is valid",
)


def load(url: str) -> JSON:
    if url not in SUITE["remotes"]:
        raise FileNotFoundError(url)
    return SUITE["remotes"][url]


def refers_elsewhere(schema: JSON) -> bool:
    """Whether a schema needs another document, which a collection's bundled schema never does."""
    try:
        Validator(schema, "x")
    except SchemaError as exc:
        return "is not present in a registry" in str(exc)
    return False


@pytest.mark.parametrize("file", sorted(TESTS))
def test_official_suite_passes(file: str) -> None:
    found = [
        each
        for case in TESTS[file]
        if not refers_elsewhere(case["schema"])
        for each in wrong(file, case["schema"], case)
    ]

    assert set(found) == {each for each in DIFFERENT if each[0] == file}


@pytest.mark.parametrize("file", sorted(TESTS))
def test_official_suite_passes_after_bundling(file: str) -> None:
    cases = [case for case in TESTS[file] if not is_dynamic(case["schema"])]
    bundled = [(bundle(case["schema"], "http://localhost:1234/root.json", load), case) for case in cases]
    found = [each for schema, case in bundled for each in wrong(file, schema, case)]

    assert set(found) == {each for each in {*DIFFERENT, MIXED} if each[0] == file}


@pytest.mark.parametrize("file", sorted(TESTS))
def test_valid_instances_of_the_official_suite_match_the_shape(file: str) -> None:
    for case in TESTS[file]:
        if not is_dynamic(case["schema"]):
            schema = bundle(case["schema"], "http://localhost:1234/root.json", load)
            validator, shape = Validator(schema, file), infer(schema)
            unsound = [
                each["data"]
                for each in case["tests"]
                if validator.is_valid(each["data"]) and not allows(shape, each["data"])
            ]
            assert (case["description"], unsound) == (case["description"], [])


def test_dynamic_references_cannot_be_bundled() -> None:
    refused = Counter(file for file, cases in TESTS.items() for case in cases if is_dynamic(case["schema"]))

    assert refused == {"dynamicRef": 10, "optional/dynamicRef": 1, "unevaluatedItems": 1, "unevaluatedProperties": 1}


def is_dynamic(schema: JSON) -> bool:
    """Whether a schema has a dynamic reference with a choice, which cannot be bundled."""
    try:
        bundle(schema, "http://localhost:1234/root.json", load)
    except SchemaError as exc:
        return "depending on the path it is reached by" in str(exc)
    return False


def test_official_suite_is_complete() -> None:
    cases = [case for file in TESTS.values() for case in file]

    assert (len(TESTS), len(cases), sum(len(case["tests"]) for case in cases)) == (80, 438, 1906)
    assert sum(refers_elsewhere(case["schema"]) for case in cases) == 21
