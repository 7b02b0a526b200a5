"""A project without a `deno.json` gets one; an author's is left alone, with a word of what to add."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.derive_typescript.author_files import settings_of

ENTRY = '"flow/": "./flow_generated/typescript/"'


def test_new_deno_json_has_only_the_entry_of_types(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert settings.path == tmp_path / "deno.json"
    assert settings.text == '{\n    "imports": {\n        "flow/": "./flow_generated/typescript/"\n    }\n}\n'
    assert settings.note is None


@pytest.mark.parametrize("name", ["deno.json", "deno.jsonc"])
def test_deno_json_with_the_entry_stays_unchanged(tmp_path: Path, name: str) -> None:
    text = '{"imports": {' + ENTRY + "}} // so"
    (tmp_path / name).write_text(text)
    settings = settings_of(tmp_path)
    assert (settings.path, settings.text, settings.note) == (tmp_path / name, text, None)


# What the file holds, and why editors find nothing by it.
LEFT_ALONE = [
    (b"{", "has no object of imports"),
    (b"[]", "has no object of imports"),
    (b'{"imports": 1}', "has no object of imports"),
    (b"\xff", "is not UTF-8 text"),
    (b'{"imports": {"flow/": "./mine/"}}', 'maps this name to "./mine/"'),
    (b'{"importMap": "map.json"}', 'has its imports in "map.json"'),
    (b"{}", "lacks this name"),
    (b'{"imports": {"a": "npm:a"}, /* mine */}', "lacks this name"),
]


@pytest.mark.parametrize(("content", "why"), LEFT_ALONE)
def test_deno_json_of_an_author_stays_unchanged(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "deno.json").write_bytes(content)
    settings = settings_of(tmp_path)
    assert settings.text is None
    assert settings.note == f'for editors to find the types, add {ENTRY} to "imports": deno.json {why}'
