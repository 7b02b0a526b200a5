"""What torture compares of tables: columns that are not what their document says are told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from typed_rows import differences

from derive.protocol.specs import CatalogSpec

CATALOG = """
collections:
  a/rows:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties:
        id: { type: integer }
        at: { type: string, format: date-time }
        n: { type: number }
        is: { type: boolean }
        some: { type: array }
        text: { type: string }
"""
TEXT = '{"id":1,"at":"2024-01-01T01:00:00+01:00","n":0.1,"is":true,"some":[1]}'
ROW = {"id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC), "n": Decimal("0.1"), "is": 1, "some": "[1]", "text": None}


@pytest.mark.parametrize(
    ("column", "value", "is_told"),
    [
        ("id", 1, False),
        ("id", 2, True),
        ("at", datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), False),
        ("at", datetime(2024, 1, 1, 1, tzinfo=UTC), True),
        ("n", 0.1, False),
        ("n", Decimal("0.10000000000000001"), True),
        ("n", None, True),
        ("is", False, True),
        ("some", [1], False),
        ("some", "[2]", True),
        ("text", "", True),
    ],
)
def test_a_column_is_what_its_document_says(
    catalog_of: Callable[..., CatalogSpec], column: str, value: Any, is_told: bool
) -> None:
    spec = catalog_of(CATALOG).collections["a/rows"]

    assert differences(spec, [(TEXT, ROW)]) == []
    assert bool(differences(spec, [(TEXT, ROW | {column: value})])) is is_told
