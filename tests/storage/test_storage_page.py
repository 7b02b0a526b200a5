"""docs/storage.md: what it shows works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import World

from derive.cli.collections import read_command
from derive.cli.compact import command as compact_command
from derive.protocol.specs import CatalogSpec
from derive.storage.compaction import compact

PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
CATALOG = """
collections:
  acmeBank/transfers:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
"""


def test_pandas_reads_the_files_that_the_metadata_names(
    catalog_of: Callable[..., CatalogSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / ".flow", catalog_of(CATALOG))
    for number in range(3):
        world.ingest("acmeBank/transfers", [{"id": number}], None)
    compact(world.store, world.catalog.collections["acmeBank/transfers"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)  # type: ignore[index]
    names["db"].close()

    assert list(names["frame"].columns) == ["clock", "seq", "diff", "key", "doc", "id", "flow_exact"]
    assert list(names["frame"]["id"]) == [0, 1, 2]
    assert list(names["frame"]["doc"]) == ['{"id":0}', '{"id":1}', '{"id":2}']
    assert len(list(tmp_path.rglob("*.parquet"))) == 4


@pytest.mark.parametrize(("name", "command"), [("collections read", read_command), ("compact", compact_command)])
def test_every_option_of_the_storage_page_exists(name: str, command: click.Command) -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    shown = {
        option for line in re.findall(rf"flowctl {name}([^`#\n]*)", PAGE) for option in re.findall(r"--[\w-]+", line)
    }

    assert shown
    assert shown <= known
