"""An author's `deno.json` gains one entry and keeps everything else, or is left alone with a word of what to add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.derive_typescript.types.deno_json import NAME, extend_settings

ENTRY = '"flow/": "./flow_generated/typescript/"'
# What the file holds, and what it holds then.
EXTENDED = [
    ("{}", '{\n    "imports": {\n        ' + ENTRY + "\n    }\n}"),
    ("{\n}\n", '{\n    "imports": {\n        ' + ENTRY + "\n    }\n}\n"),
    (
        '{\n  "tasks": { "x": "y" }\n}\n',
        '{\n  "imports": {\n    ' + ENTRY + '\n  },\n  "tasks": { "x": "y" }\n}\n',
    ),
    (
        '{\n  "imports": {\n    "a": "npm:a"\n  }\n}\n',
        '{\n  "imports": {\n    ' + ENTRY + ',\n    "a": "npm:a"\n  }\n}\n',
    ),
    # in the members of another object, a name is another name
    (
        '{\n\t"x": { "imports": {} },\n\t"imports": {}\n}',
        '{\n\t"x": { "imports": {} },\n\t"imports": {\n\t\t' + ENTRY + "\n\t}\n}",
    ),
    # comments and trailing commas stay
    (
        '// mine\n{\n  // the "imports": {\n  "imports": { // of\n    "a": "npm:a", /* } */\n  },\n}\n',
        '// mine\n{\n  // the "imports": {\n  "imports": {\n    ' + ENTRY + ', // of\n    "a": "npm:a", /* } */\n  },\n}\n',
    ),
    # so do ends of lines
    (
        '{\r\n  "lock": false\r\n}\r\n',
        '{\r\n  "imports": {\r\n    ' + ENTRY + '\r\n  },\r\n  "lock": false\r\n}\r\n',
    ),
    # what is there already is there
    ('{"imports": {' + ENTRY + "}} // so", '{"imports": {' + ENTRY + "}} // so"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["deno.json", "deno.jsonc"])
@pytest.mark.parametrize(("text", "expected"), EXTENDED)
def test_an_entry_is_inserted(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    found = extend_settings(tmp_path)
    assert (found.path, found.text, found.note) == (tmp_path / name, expected, None)


def test_a_new_file_has_the_entry_alone(tmp_path: Path) -> None:
    found = extend_settings(tmp_path)
    assert found.path == tmp_path / "deno.json"
    assert found.text == '{\n    "imports": {\n        "flow/": "./flow_generated/typescript/"\n    }\n}\n'


# What the file holds, and why it is left alone.
LEFT_ALONE = [
    (b"{", "is not understood"),
    (b"[]", "is not understood"),
    (b'{"imports": 1}', "is not understood"),
    (b"\xff", "is not UTF-8 text"),
    (b'{"imports": {"flow/": "./mine/"}}', 'has another place for it, "./mine/"'),
    (b'{"importMap": "map.json"}', 'has its imports in "map.json"'),
    (b'{"imports": {}, "imports": {"a": "npm:a"}}', "is not understood"),  # the entry would be in the first, unseen
]


@pytest.mark.parametrize(("content", "why"), LEFT_ALONE)
def test_what_cannot_be_extended_safely_is_left_alone(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "deno.json").write_bytes(content)
    found = extend_settings(tmp_path)
    assert found.text is None
    assert found.note == (
        f'for editors to find the types, add "flow/": "./flow_generated/typescript/" to "imports": deno.json {why}'
    )


NAMES = st.sampled_from(["imports", "flow", "a", "//", "/*", '"', "{", "compilerOptions"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text('{}[]:,/*" \\x\n', max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
SETTINGS = st.builds(
    lambda imports, others: {**others, **({} if imports is None else {"imports": imports})},
    st.none() | st.dictionaries(NAMES, st.just("npm:x"), max_size=3),
    st.dictionaries(NAMES.filter(lambda name: name != "imports"), VALUES, max_size=3),
)


@given(SETTINGS, st.sampled_from([None, 1, 4, "\t"]))
def test_nothing_else_changes_and_a_second_time_nothing_at_all(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object], indent: int | str | None
) -> None:
    folder = tmp_path_factory.mktemp("project")
    path = folder / "deno.json"
    path.write_text(json.dumps(value, indent=indent))
    text = extend_settings(folder).text
    assert text is not None
    imports = value.get("imports", {})
    assert isinstance(imports, dict)
    assert json.loads(text) == {**value, "imports": {**imports, NAME: "./flow_generated/typescript/"}}
    path.write_text(text)
    assert extend_settings(folder).text == text
