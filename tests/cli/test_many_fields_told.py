"""More fields than a table has room for: `check` and `plan` say which are left out."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import write_catalog
from forked_flowctl import flowctl

CATALOG = """
collections:
  m/o: {key: [/k], schema: SCHEMA}
materializations:
  m/s:
    endpoint: {connector: {image: materialize-sqlite, config: {path: out.db}}}
    bindings: [{resource: {table: o}, source: m/o, fields: {FIELDS}}]
"""


def test_check_and_plan_say_what_is_left_out(tmp_path: Path) -> None:
    properties = {
        "k": {"type": "integer"},
        "v": {"type": "integer"},
        **{f"w{number:04}": {"type": "integer"} for number in range(2100)},
    }
    schema = json.dumps({"type": "object", "required": ["k"], "properties": properties})
    write_catalog(tmp_path, CATALOG.replace("SCHEMA", schema).replace("FIELDS", ""))
    status, _, err = flowctl(tmp_path, "check")
    assert status == 0
    said = "leaves out 104 fields, 'w1997' is the first: there is room for 2,000"
    assert f"'m/o -> o' {said}" in err
    status, out, _ = flowctl(tmp_path, "materialize", "plan", "-o", "table")
    assert status == 0
    assert said in out
    out = flowctl(tmp_path, "materialize", "plan", "-o", "json")[1]
    (binding,) = json.loads(out)["bindings"]
    assert (len(binding["leftOut"]), len(binding["values"])) == (104, 1998)

    excluded = json.dumps([f"w{number:04}" for number in range(150)])
    write_catalog(tmp_path, CATALOG.replace("SCHEMA", schema).replace("FIELDS", f"exclude: {excluded}"))
    status, _, err = flowctl(tmp_path, "check")
    assert (status, "leaves out" in err) == (0, False)

    wanted = json.dumps({f"w{number:04}": {} for number in range(2100)})
    write_catalog(tmp_path, CATALOG.replace("SCHEMA", schema).replace("FIELDS", f"require: {wanted}"))
    status, _, err = flowctl(tmp_path, "check")
    assert status == 1
    assert "2,102 fields are to be materialized, and the endpoint has room for 2,000" in err
