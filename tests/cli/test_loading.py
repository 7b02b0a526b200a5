"""What commands load: nothing that they do not need, which would take longer than what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
import sys
from derive.cli.main import flowctl
flowctl.main(sys.argv[1:], standalone_mode=False)
heavy = {
    "asyncio", "derive.sql.session", "derive.algebra", "derive.materialize.plan", "duckdb", "google.protobuf", "grpc",
    "http.client", "importlib.metadata", "numpy", "pandas", "pyarrow", "pyspark", "rich",
}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalog")
    (folder / "flow.yaml").write_text(CATALOG)
    loaded_by(folder, "ingest", "--collection", "l/numbers", given='{"id":1}\n{"id":1}\n')
    return folder


def loaded_by(folder: Path, *arguments: str, given: str = "") -> list[str]:
    """What of all that is heavy one run of `flowctl` loads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        input=given,
        check=True,
    )
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("arguments", [["check"], ["status"], ["collections", "list"], ["graph"]])
def test_commands_without_documents_load_neither_arrow_nor_numpy(folder: Path, arguments: list[str]) -> None:
    assert loaded_by(folder, *arguments) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["ingest", "--collection", "l/numbers"],
        ["collections", "read", "--collection", "l/numbers"],
        ["collections", "read", "--collection", "l/numbers", "--reduce"],
        ["run", "--until-idle"],
        ["compact"],
        ["test"],
    ],
)
def test_commands_on_documents_import_neither_pandas_nor_spark(folder: Path, arguments: list[str]) -> None:
    assert loaded_by(folder, *arguments) == ["numpy", "pyarrow"]
