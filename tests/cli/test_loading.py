"""What commands load: nothing that they do not need, which would take longer than what they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CATALOG = """\
collections:
  l/numbers:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
  l/doubled:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: double, source: l/numbers, shuffle: any, lambda: SELECT 2 * $id AS id;}]
"""
SCRIPT = """\
import json, sys
from derive.cli.main import flowctl
for arguments in json.loads(sys.argv[1]):
    flowctl.main(arguments, standalone_mode=False)
heavy = {
    "asyncio", "derive.sql.session", "derive.algebra", "derive.materialize.plan", "duckdb", "google.protobuf", "grpc",
    "http.client", "importlib.metadata", "jinja2", "numpy", "pandas", "pyarrow", "pyspark", "rich", "starlette",
    "uvicorn",
}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def loaded_by(folder: Path, *commands: list[str]) -> list[str]:
    """Return the heavy modules that a process imports for commands of `flowctl`, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        input='{"id":1}\n{"id":1}\n',
        check=True,
    )
    return done.stderr.splitlines()[-1].split()


def test_commands_import_no_modules_that_they_do_not_need(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    read = ["collections", "read", "--collection", "l/numbers"]
    ingest, run = ["ingest", "--collection", "l/numbers"], ["run", "--until-idle"]

    assert loaded_by(tmp_path, ingest, read, [*read, "--reduce"], run, ["compact"], ["test"]) == ["numpy", "pyarrow"]
    assert loaded_by(tmp_path, ["check"], ["status"], ["collections", "list"], ["graph"], ["ui", "--help"]) == []
