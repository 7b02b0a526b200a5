"""The module that docs/typescript-runtime.md shows does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog.build import check_catalog
from derive.document.clock import parse_rfc3339

pytestmark = pytest.mark.deno

PAGE = Path(__file__).parents[2] / "docs" / "typescript-runtime.md"
CATALOG = """
collections:
  acme/transfers:
    schema:
      type: object
      required: [id, sender, amount, at]
      properties: {id: {type: integer}, sender: {type: string}, amount: {type: number}, at: {type: string}}
    key: [/id]
  acme/totals:
    schema:
      type: object
      required: [sender, total]
      properties: {sender: {type: string}, total: {type: number}}
    key: [/sender]
    derive:
      using: {typescript: {module: totals.ts}}
      transforms: [{name: from-transfers, source: acme/transfers, shuffle: {key: [/sender]}}]
"""


def test_documented_module_type_checks_and_keeps_its_state(tmp_path: Path) -> None:
    [module] = re.findall(r"```typescript\n(.*?)```", PAGE.read_text(), re.DOTALL)
    source = write_catalog(tmp_path, CATALOG, totals__ts=module)
    built = check_catalog(source)
    assert built.issues == ()
    world = World(tmp_path / "data", built.spec)
    for number, second in ((1, "01"), (2, "05"), (3, "09")):
        at = f"2024-01-01T00:00:{second}Z"
        world.ingest("acme/transfers", [{"id": number, "sender": "alice", "amount": 10 * number, "at": at}])
        world.wall = parse_rfc3339(at) + 2_000_000
        world.step()
    assert [row[3] for row in world.rows("acme/totals")] == [
        '{"sender":"alice","total":10}',
        '{"sender":"alice","total":30}',
        '{"sender":"alice","total":60}',
    ]
