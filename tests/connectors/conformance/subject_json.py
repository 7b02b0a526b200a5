"""The connector of docs/writing-connectors.md conforms to the protocol."""

from __future__ import annotations

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from raw_client import Document, Key
from subject import Subject

ROOT = Path(__file__).parents[3]
SECTION = (
    (ROOT / "docs/writing-connectors.md").read_text().partition("## A materialize connector")[2].partition("\n## ")[0]
)


def code() -> str:
    """The connector's module."""
    return "".join(re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL))


def make(folder: Path, request: pytest.FixtureRequest) -> Subject:
    path = folder / "to_json.py"
    path.write_text(code())
    spec = spec_from_file_location("to_json", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    target = folder / "endpoint" / "tables.json"

    def resource(table: str, delta: bool) -> Any:
        return {"table": table}

    def rows(table: str) -> dict[Key, Document]:
        content = json.loads(target.read_text()) if target.exists() else {"tables": {}}
        return {tuple(json.loads(key)): json.loads(text) for key, text in content["tables"].get(table, {}).items()}

    return Subject(module.JsonConnector(), {"path": str(target)}, resource, rows, deltas=False)
