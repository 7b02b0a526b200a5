"""Definitions of derivations as JSON texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from derive.catalog import load_without_tests
from derive.protocol.definition_text import definition_of, restored
from derive.protocol.specs import CatalogSpec, DerivationSpec

EXAMPLES = load_without_tests(Path(__file__).parents[2] / "flow.yaml")

REDACTED = """
collections:
  d/in:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  d/out:
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, who: {type: string, redact: {strategy: sha256}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      REDACT
      transforms: [{name: a, source: d/in, shuffle: any, lambda: SELECT $id}]
"""


@pytest.mark.parametrize("name", EXAMPLES.derivations)
def test_definition_is_restored_from_its_text(name: str) -> None:
    spec = EXAMPLES.derivations[name]
    definition = definition_of(spec)

    again = restored(definition.text, replace(spec, tick=spec.tick + 1))

    assert again is not None
    assert definition_of(again) == definition
    assert again.tick == spec.tick
    assert again.collection.projections == spec.collection.projections
    assert [item.selector for item in again.inputs] == [item.selector for item in spec.inputs]


def test_definition_does_not_depend_on_positions(catalog_of: Callable[..., CatalogSpec]) -> None:
    texts = [REDACTED.replace("REDACT", ""), "# a line\n" + REDACTED.replace("REDACT", "")]
    first, second = (definition_of(catalog_of(text).derivations["d/out"]) for text in texts)

    assert first == second


def test_definition_with_another_salt_is_not_restored(catalog_of: Callable[..., CatalogSpec]) -> None:
    def salted(salt: bytes) -> DerivationSpec:
        spec = catalog_of(REDACTED.replace("REDACT", "")).derivations["d/out"]
        redaction = spec.collection.redaction
        assert redaction is not None
        return replace(
            spec, tick=len(salt), collection=replace(spec.collection, redaction=replace(redaction, salt=salt))
        )

    definition = definition_of(salted(b"pepper"))
    again = restored(definition.text, replace(salted(b"pepper"), tick=1))

    assert again is not None
    assert again.collection.redaction is not None
    assert again.collection.redaction.salt == b"pepper"
    assert restored(definition.text, salted(b"other")) is None
    assert "pepper" not in definition.text
    assert "cGVwcGVy" not in definition.text  # its base64
