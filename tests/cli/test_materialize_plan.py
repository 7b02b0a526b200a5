"""`flowctl materialize plan` and `flowctl check` from outside, with connectors as processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from checkout import REPOSITORY, installed_site
from conftest import write_catalog
from forked_flowctl import flowctl

CATALOG = """\
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id, customer]
      properties: {id: {type: integer}, customer: {type: string}, amount: {type: number}}
materializations:
  shop/warehouse:
    endpoint: {connector: {image: "ghcr.io/estuary/materialize-sqlite:dev", config: {path: "${env:DATABASE:-shop.db}"}}}
    bindings:
      - {resource: {table: orders}, source: shop/orders, fields: {exclude: [flow_published_at]}}
  shop/later:
    endpoint: {connector: {image: materialize-sqlite, config: {path: later.db}}}
    bindings: []
    shards: {disable: true}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    installed_site(tmp_path / "site")
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "flow.yaml").write_text(CATALOG)
    return tmp_path


def on_site(folder: Path, *arguments: str, **env: str) -> tuple[int, str, str]:
    path = os.pathsep.join([str(folder / "site"), str(REPOSITORY)])
    return flowctl(folder, *arguments, "--source", "catalog/flow.yaml", env={**os.environ, "PYTHONPATH": path, **env})


def test_plan_reports_changes_and_makes_none(folder: Path) -> None:
    status, out, err = on_site(folder, "materialize", "plan", "-o", "table")

    assert (status, err) == (0, "")
    assert out.startswith(
        "shop/warehouse\n"
        "  shop/orders -> orders (one row per key)\n"
        "    key       id\n"
        "    values    amount, customer\n"
        "    document  flow_document\n"
        "  planned changes:\n"
    )
    assert '    CREATE TABLE "orders" (' in out
    assert not list(folder.rglob("*.db"))


def test_plan_is_printed_as_json(folder: Path) -> None:
    status, out, err = on_site(folder, "materialize", "plan", "shop/warehouse")

    assert (status, err) == (0, "")
    [plan] = map(json.loads, out.splitlines())
    assert (plan["materialization"], len(plan["version"])) == ("shop/warehouse", 16)
    assert plan["bindings"] == [
        {
            "binding": "shop/orders -> orders",
            "collection": "shop/orders",
            "resource": ["orders"],
            "key": ["id"],
            "values": ["amount", "customer"],
            "document": "flow_document",
            "deltaUpdates": False,
            "leftOut": [],
        }
    ]
    assert plan["unaccepted"] == []
    assert "CREATE TABLE" in plan["action"]


def test_plan_prints_errors_after_valid_plans(folder: Path) -> None:
    broken = CATALOG.replace(
        "  shop/later:",
        "  shop/wrong:\n"
        "    endpoint: {connector: {image: materialize-sqlite, config: {path: a.db, pathh: x}}}\n"
        "    bindings: []\n"
        "  shop/elsewhere:\n"
        "    endpoint: {connector: {image: materialize-bigquery, config: {password: hunter2}}}\n"
        "    bindings: []\n"
        "  shop/later:",
    )
    (folder / "catalog/flow.yaml").write_text(broken)

    status, out, err = on_site(folder, "materialize", "plan")

    assert status == 1
    assert [json.loads(line)["materialization"] for line in out.splitlines()] == ["shop/warehouse"]
    assert "error[E708]: the configuration has no property 'pathh'" in err
    assert "error: the connector 'materialize-bigquery' of the image" in err
    assert "hunter2" not in err
    assert "password: ***    }" in err


def test_plan_of_an_unknown_materialization_is_refused(folder: Path) -> None:
    status, out, err = on_site(folder, "materialize", "plan", "shop/warehose")

    assert (status, out) == (2, "")
    assert "the catalog has no materialization 'shop/warehose'" in err
    assert "did you mean 'shop/warehouse'?" in err


def test_check_validates_bindings_with_connectors(folder: Path) -> None:
    assert on_site(folder, "check")[0] == 0

    (folder / "catalog/flow.yaml").write_text(CATALOG.replace("{table: orders}", "{tabel: orders}"))
    status, out, _ = on_site(folder, "check", "-o", "json")

    assert status == 1
    [issue] = map(json.loads, out.splitlines())
    assert (issue["code"], issue["message"], issue["hint"]) == (
        "E709",
        "the resource has no property 'tabel'",
        "did you mean 'table'?",
    )
    assert (issue["line"], issue["column"]) == (12, 28)


def test_relative_file_names_begin_at_the_catalog(folder: Path) -> None:
    (folder / "catalog" / "shop.db").write_text("this is no database, and far from it: " * 100)

    status, _, err = on_site(folder, "check")

    assert status == 1
    assert "error[E711]: 'shop/warehouse'" in err


def test_json_schema_describes_configurations_of_connectors(folder: Path) -> None:
    from jsonschema import Draft202012Validator

    from derive.catalog.language.yaml import parse_yaml

    path = os.pathsep.join([str(folder / "site"), str(REPOSITORY)])
    schema = json.loads(flowctl(folder, "json-schema", env={**os.environ, "PYTHONPATH": path})[1])
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema)

    def faults(text: str) -> list[str]:
        return [fault.json_path for fault in judge.iter_errors(parse_yaml(text, "flow.yaml").value)]

    assert faults(CATALOG) == []
    assert faults(CATALOG.replace("config: {path: later.db}", "config: in-a-file.yaml")) == []
    assert faults(CATALOG.replace("path: later.db", "pth: later.db")) != []
    assert faults(CATALOG.replace("{table: orders}", "{tabel: orders}")) != []
    assert faults(CATALOG.replace("materialize-sqlite, config: {path", "materialize-other, config: {pth")) == []


# More fields than a table has room for: `check` and `plan` say which are left out.


MANY_FIELDS = """
collections:
  m/o: {key: [/k], schema: SCHEMA}
materializations:
  m/s:
    endpoint: {connector: {image: materialize-sqlite, config: {path: out.db}}}
    bindings: [{resource: {table: o}, source: m/o, fields: {FIELDS}}]
"""


def test_check_and_plan_report_omitted_fields(tmp_path: Path) -> None:
    properties = {
        "k": {"type": "integer"},
        "v": {"type": "integer"},
        **{f"w{number:04}": {"type": "integer"} for number in range(2100)},
    }
    schema = json.dumps({"type": "object", "required": ["k"], "properties": properties})
    write_catalog(tmp_path, MANY_FIELDS.replace("SCHEMA", schema).replace("FIELDS", ""))
    status, _, err = flowctl(tmp_path, "check")
    assert status == 0
    said = "leaves out 104 fields (the first is 'w1997'): the endpoint has room for 2,000 fields"
    assert f"'m/o -> o' {said}" in err
    status, out, _ = flowctl(tmp_path, "materialize", "plan", "-o", "json")
    assert status == 0
    (binding,) = json.loads(out)["bindings"]
    assert (len(binding["leftOut"]), len(binding["values"])) == (104, 1998)

    wanted = json.dumps({f"w{number:04}": {} for number in range(2100)})
    write_catalog(tmp_path, MANY_FIELDS.replace("SCHEMA", schema).replace("FIELDS", f"require: {wanted}"))
    status, _, err = flowctl(tmp_path, "check")
    assert status == 1
    assert "the selection has 2,102 fields, but the endpoint has room for 2,000" in err


def test_connector_describe_lists_the_options_of_endpoint_and_resource(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "connector", "describe", "materialize-webhook", "-o", "json")
    rows = {(row["of"], row["option"]): row for row in map(json.loads, out.splitlines())}

    assert status == 0
    assert err == "documentation of materialize-webhook: docs/materialize-connectors.md#webhook\n"
    assert rows["endpoint", "address"] == {
        "of": "endpoint",
        "option": "address",
        "type": "string",
        "required": "yes",
        "secret": "yes",
        "default": None,
        "description": "Address to which documents are posted, by https or http.",
    }
    assert {key: row["type"] for key, row in rows.items()} == {
        ("endpoint", "address"): "string",
        ("endpoint", "headers"): "object of strings",
        ("endpoint", "timeout_seconds"): "number > 0",
        ("endpoint", "retry_seconds"): "number ≥ 0",
        ("endpoint", "batch_documents"): "integer ≥ 1",
        ("endpoint", "batch_bytes"): "integer ≥ 1",
        ("resource", "path"): "string",
        ("resource", "delta_updates"): "always true",
    }
    status, out, _ = flowctl(tmp_path, "connector", "describe", "materialize-sqlite", "-o", "table")
    assert out.splitlines()[0].split() == ["of", "option", "type", "required", "secret", "default", "description"]
    assert out.splitlines()[3].split()[:6] == ["resource", "delta_updates", "boolean", "no", "no", "false"]


def test_connector_describe_without_a_name_lists_the_connectors(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "connector", "describe")

    assert (status, out) == (2, "")
    assert "installed connectors: materialize-duckdb, materialize-files" in err


def test_plan_without_materializations_says_so(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("collections: {}\n")

    assert flowctl(tmp_path, "materialize", "plan") == (0, "", "the catalog has no materialization that is enabled\n")


def test_connector_describe_suggests_an_installed_connector(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "connector", "describe", "materialize-sqlit")

    assert (status, out) == (1, "")
    assert "did you mean 'materialize-sqlite'?" in err
