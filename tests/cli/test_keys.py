"""Keys on the command line: one documented form, and shorter ones for a key of one part."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.cli.keys import packed_keys, values_of_key
from derive.document.key import pack
from derive.document.pointer import JSON
from derive.errors import UsageError

CATALOG = """
collections:
  k/texts: {key: [/name], schema: {type: object, required: [name], properties: {name: {type: string}}}}
  k/numbers: {key: [/id], schema: {type: object, required: [id], properties: {id: {type: integer}}}}
  k/pairs:
    key: [/name, /id]
    schema: {type: object, required: [name, id], properties: {name: {type: string}, id: {type: integer}}}
"""


@pytest.mark.parametrize(
    ("collection", "text", "values"),
    [
        ("k/texts", '["ann"]', ["ann"]),
        ("k/texts", '"ann"', ["ann"]),
        ("k/texts", "ann", ["ann"]),
        ("k/texts", "7", ["7"]),  # each key of the collection is a text
        ("k/texts", "a b", ["a b"]),
        ("k/numbers", "[7]", [7]),
        ("k/numbers", "7", [7]),
        ("k/pairs", '["ann", 7]', ["ann", 7]),
    ],
)
def test_forms_of_a_key_are_equal(tmp_path: Path, collection: str, text: str, values: list[JSON]) -> None:
    write_catalog(tmp_path, CATALOG)
    spec = load(tmp_path / "flow.yaml").collections[collection]
    assert values_of_key(spec, text) == values
    assert packed_keys(spec, [text]) == (pack(values),)


@pytest.mark.parametrize(
    ("collection", "text", "message", "hint"),
    [
        ("k/texts", "[ann]", "--key is not JSON: [ann]", "with a value for each of [/name], and texts have quotes"),
        ("k/texts", "", "--key is not JSON: ", "a key is a JSON array"),
        ("k/pairs", "ann", "--key is not JSON: ann", "--key '[\"ann\", 7]'"),
        ("k/pairs", '["ann"]', "has 2 values, of /name, /id", ""),
        ("k/numbers", "ann", "/id of a key of 'k/numbers' is integer, and \"ann\" is string", ""),
    ],
)
def test_texts_that_are_no_keys_are_refused(
    tmp_path: Path, collection: str, text: str, message: str, hint: str
) -> None:
    write_catalog(tmp_path, CATALOG)
    with pytest.raises(UsageError) as raised:
        packed_keys(load(tmp_path / "flow.yaml").collections[collection], [text])
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
