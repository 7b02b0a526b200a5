"""Before a run: the code that is to run must be right, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from derive.catalog import load
from derive.catalog.check import require_sound
from derive.errors import CatalogError

CATALOG = """\
collections:
  s/source: &keyed
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
  s/right:
    <<: *keyed
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: s/source, shuffle: any, lambda: SELECT $id;}]
  s/wrong:
    <<: *keyed
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: s/source, shuffle: any, lambda: SELECT $id FROM nowhere;}]
"""


def test_only_the_code_of_derivations_that_run_must_be_right(tmp_path: Path) -> None:
    source = tmp_path / "flow.yaml"
    source.write_text(CATALOG)
    catalog = load(source)

    require_sound(catalog, ["s/right"])
    with pytest.raises(CatalogError, match="no such table: nowhere"):
        require_sound(catalog, ["s/wrong"])
    with pytest.raises(CatalogError, match="no such table: nowhere"):
        require_sound(catalog)
