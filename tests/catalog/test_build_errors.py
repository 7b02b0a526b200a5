"""What is wrong in a catalog is said with its code, its place, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.errors import CatalogError
from derive.protocol.specs import AdvanceStep

BASE = """\
collections:
  acme/transfers:
    schema: {type: object, required: [id], properties: {id: {type: integer}, who: {type: string}}}
    key: [/id]
  acme/derived:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: first
          source: acme/transfers
          shuffle: any
          lambda: SELECT $id;
"""

TABLE = [
    # what is replaced, by what, and the issue: code, line, column, message, hint
    ("shuffle: any", "shufle: any", "E011", 13, 11, "a transform has no property 'shufle'", "did you mean 'shuffle'?"),
    ("transforms:", "transform:", "E011", 10, 7, "'derive' of 'acme/derived' has no property 'transform'", "did you mean 'transforms'?"),
    ("source: acme/transfers", "source: acme/transfer", "E201", 12, 19,
     "collection 'acme/transfer', referenced by transform 'first' of 'acme/derived', is not defined",
     "did you mean 'acme/transfers'? (flow.yaml:2:3)"),
    ("key: [/id]\n  acme/derived", "key: []\n  acme/derived", "E301", 4, 10, "the key of 'acme/transfers' is empty", None),
    ("key: [/id]\n  acme/derived", "key: [/idd]\n  acme/derived", "E303", 4, 11,
     "a key '/idd' is not mentioned in the schema", "did you mean '/id'?"),
    ("key: [/id]\n  acme/derived", "key: [id]\n  acme/derived", "E302", 4, 11,
     "a key must be a JSON pointer, and is 'id'", "did you mean '/id'?"),
    ("shuffle: any", "shuffle: {key: [/who, /nope]}", "E303", 13, 33,
     "a shuffle key '/nope' is not mentioned in the schema", None),
    ("lambda: SELECT $id;", "lambda: missing.sql", "E003", 14, 19,
     "cannot load the lambda missing.sql: No such file or directory",
     "a string without any space is taken for the name of a file; 'flowctl generate' begins it"),
    ("shuffle: any", "readDelay: soon", "E013", 13, 22,
     "'readDelay' is not a duration such as '15m', '24h' or '1h 30s': 'soon'", None),
    ("acme/derived:", "acme:", "E102", 5, 3, "collection 'acme' is a prohibited prefix of collection 'acme/transfers'", None),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "line", "column", "message", "hint"), TABLE)
def test_issues(
    old: str,
    new: str,
    code: str,
    line: int,
    column: int,
    message: str,
    hint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in BASE
    write_catalog(tmp_path, BASE.replace(old, new))

    with pytest.raises(CatalogError) as caught:
        load("flow.yaml")

    issue = caught.value.issues[0]
    assert (issue.code, issue.position.line, issue.position.column) == (code, line, column)
    assert issue.message == message
    assert issue.hint == hint


def test_all_issues_are_reported_in_one_run(tmp_path: Path) -> None:
    path = write_catalog(tmp_path, BASE.replace("[/id]", "[/nope]").replace("name: first", "name: fi/rst"))

    with pytest.raises(CatalogError) as caught:
        load(path)

    assert [each.code for each in caught.value.issues] == ["E303", "E303", "E101"]


def test_yaml_1_2_anchors_merge_keys_and_words(tmp_path: Path) -> None:
    text = """
    tests:
      t/one:
        - ingest: &step
            collection: acme/transfers
            documents: &docs
              - {id: 1, who: yes}
        - ingest: {<<: *step, documents: &docs [{id: 2, who: 2024-01-01}]}
        - verify: {collection: acme/transfers, documents: *docs}
    """
    write_catalog(tmp_path, BASE)
    (tmp_path / "tests.yaml").write_text("import: [flow.yaml]\n" + text.replace("\n    ", "\n"))

    spec = load(tmp_path / "tests.yaml")

    steps = spec.tests["t/one"].steps
    assert [step.documents for step in steps if not isinstance(step, AdvanceStep)] == [
        ({"id": 1, "who": "yes"},),
        ({"id": 2, "who": "2024-01-01"},),
        ({"id": 2, "who": "2024-01-01"},),
    ]


def test_cycles_are_kept_together_and_sources_come_first(tmp_path: Path) -> None:
    def derivation(name: str, source: str) -> str:
        return (
            f"  d/{name}:\n    schema: {{type: object, properties: {{id: {{type: integer}}}}}}\n    key: [/id]\n"
            "    derive:\n      using: {sqlite: {}}\n      transforms:\n"
            f"        - {{name: t, source: {source}, shuffle: any, lambda: SELECT $id}}\n"
        )

    text = (
        BASE + derivation("z", "d/y") + derivation("x", "d/y") + derivation("y", "d/x") + derivation("self", "d/self")
    )

    spec = load(write_catalog(tmp_path, text))

    assert spec.cycles == (("acme/derived",), ("d/x", "d/y"), ("d/z",), ("d/self",))
    feedback = {name: each.transforms[0].input.feedback for name, each in spec.derivations.items()}
    assert feedback == {"acme/derived": False, "d/x": True, "d/y": True, "d/z": False, "d/self": True}
