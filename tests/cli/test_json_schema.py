"""`flowctl json-schema` prints what editors check a catalog with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from derive.catalog.language.yaml import parse_yaml
from derive.cli.main import flowctl

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> Draft202012Validator:
    result = CliRunner().invoke(flowctl, ["json-schema"])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_json_schema_accepts_all_example_catalogs(printed: Draft202012Validator) -> None:
    files = [ROOT / "flow.yaml", *ROOT.glob("examples/**/*flow.yaml")]

    faults = {str(each): list(printed.iter_errors(parse_yaml(each.read_text(), each.name).value)) for each in files}

    assert len(faults) > 10
    assert [name for name, found in faults.items() if found] == []


@pytest.mark.parametrize(
    ("catalog", "path", "keyword"),
    [
        # a property that is not known
        ({"colections": {}}, "$", "additionalProperties"),
        # a derivation without transforms
        ({"collections": {"a/b": {"schema": {}, "key": ["/id"], "derive": {"using": {"sqlite": {}}}}}},
         "$.collections.a/b.derive", "required"),
        # a key that is no pointer
        ({"collections": {"a/b": {"schema": {}, "key": ["id"]}}}, "$.collections.a/b.key[0]", "pattern"),
        # a schema, and a read schema too
        ({"collections": {"a/b": {"schema": {}, "readSchema": {}, "key": ["/id"]}}}, "$.collections.a/b", "oneOf"),
        # a name with a space
        ({"collections": {"a b": {"schema": {}, "key": ["/id"]}}}, "$.collections", "pattern"),
        # a test's name of two lines
        ({"tests": {"a\nb": []}}, "$.tests", "pattern"),
    ],
)  # fmt: skip
def test_json_schema_faults_have_positions(
    printed: Draft202012Validator, catalog: object, path: str, keyword: str
) -> None:
    [fault] = printed.iter_errors(catalog)

    assert (fault.json_path.replace("['a/b']", ".a/b"), fault.validator) == (path, keyword)
