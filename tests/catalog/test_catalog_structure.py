"""Wrong structure: each fault is named once, at its place, and hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.errors import CatalogError, Issue

BASE = """\
collections:
  a/source:
    schema: {type: object, properties: {id: {type: integer}, who: {type: string}}}
    key: [/id]
    projections: {}
  a/sums:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: first
          source: {name: a/source, partitions: {}}
          shuffle: any
          lambda: SELECT $id;
"""

TABLE = [
    # what is replaced, by what, and all issues: code, line, column, message
    ("projections: {}", "projections: [/id]", [("E010", 5, 18, "'projections' must be an object")]),
    ("projections: {}", "projections: {w: {locaton: /who}}", [("E011", 5, 23, "projection 'w' has no property 'locaton'")]),
    ("projections: {}", "projections: {w: {location: /who, partition: 1}}", [("E010", 5, 50, "'partition' must be a boolean")]),
    ("projections: {}", "projections: {w: who}", [("E302", 5, 22, "projection 'w' needs a JSON pointer as its location")]),
    ("partitions: {}", "partitions: [x]", [("E010", 13, 48, "a partition selector must be an object")]),
    ("partitions: {}", "partitions: {includ: {}}", [("E011", 13, 49, "a partition selector has no property 'includ'")]),
    ("partitions: {}", "partitions: {include: {who: [x]}}", [("E306", 13, 59, "'who' is not a logical partition of 'a/source'")]),
    ("{sqlite: {}}", "{sqllite: {}}", [("E011", 10, 15, "'using' has no property 'sqllite'")]),
    ("{sqlite: {}}", "{}", [("E014", 10, 14, "'using' names exactly one of 'python', 'sqlite' and 'typescript'")]),
    ("shuffle: any", "shuffle: {keys: [/id]}", [("E011", 14, 21, "'shuffle' has no property 'keys'")]),
    ("shuffle: any", "shuffle: all", [("E015", 14, 20, "'shuffle' is 'any', or an object with 'key' or 'lambda'")]),
    ("shuffle: any", "shuffle: {key: []}", [("E503", 14, 26, "a shuffle key is an array of at least one JSON pointer")]),
    ("      using", "      shuffleKeyTypes: [number]\n      using",
     [("E505", 10, 25, "the type of a shuffle key is 'boolean', 'integer' or 'string'")]),
    # A collection that cannot be loaded is still defined: nobody is told that it is not.
    ("projections: {}", "projection: {}", [("E011", 5, 5, "collection 'a/source' has no property 'projection'")]),
    # An unknown property here does not hide an unknown collection there.
    ("source: {name: a/source, partitions: {}}", "source: a/sauce\n          prority: 1",
     [("E201", 13, 19, "collection 'a/sauce', referenced by transform 'first' of 'a/sums', is not defined"),
      ("E011", 14, 11, "a transform has no property 'prority'")]),
]  # fmt: skip


def issues(folder: Path, text: str) -> tuple[Issue, ...]:
    with pytest.raises(CatalogError) as caught:
        load(write_catalog(folder, text))
    return caught.value.issues


@pytest.mark.parametrize(
    ("shuffle", "hint"),
    [
        ("all", "write 'shuffle: any'"),
        ("ani", "write 'shuffle: any'"),
        ("ANY", "write 'shuffle: any'"),
        ("customer", "write 'shuffle: {key: [/customer]}'"),
        ("[/customer, who/name]", "write 'shuffle: {key: [/customer, /who/name]}'"),
        ("two words", None),
        ("[5, {}]", None),
        ("5", None),
        ("null", None),
        ("[]", None),
    ],
)
def test_shuffle_that_is_a_location_has_a_hint(shuffle: str, hint: str | None, tmp_path: Path) -> None:
    (issue,) = issues(tmp_path, BASE.replace("shuffle: any", f"shuffle: {shuffle}"))

    assert (issue.code, issue.hint) == ("E015", hint)


@pytest.mark.parametrize(("old", "new", "expected"), TABLE)
def test_structure_check_reports_issues(
    old: str, new: str, expected: list[tuple[str, int, int, str]], tmp_path: Path
) -> None:
    assert BASE.count(old) == 1

    found = issues(tmp_path, BASE.replace(old, new))

    assert [(each.code, each.position.line, each.position.column, each.message) for each in found] == expected


def test_invalid_schemas_are_reported_before_inference(tmp_path: Path) -> None:
    found = issues(tmp_path, BASE.replace("properties: {id: {type: integer}, who", "properties: {id: {type: 5}, who"))

    assert [(each.code, each.position.line, each.position.column) for each in found] == [("E403", 3, 52)]


def test_unloadable_file_suppresses_errors_of_missing_names(tmp_path: Path) -> None:
    text = "import: [gone.yaml]\n" + BASE.replace("a/source, partitions", "not/here, partitions")

    assert [each.code for each in issues(tmp_path, text)] == ["E003"]


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [("collections:", "colections:", ["E011"]), ("captures:", "capture:", ["E201", "E011"])],
)
def test_misspelt_section_hides_only_references_to_its_names(
    old: str, new: str, codes: list[str], tmp_path: Path
) -> None:
    text = BASE.replace("a/source, partitions", "not/here, partitions") + "captures: {}\n"
    text += "tests: {t: [verify: {collection: a/sums, documents: []}]}\n"

    assert [issue.code for issue in issues(tmp_path, text.replace(old, new))] == codes


def test_invalid_schemas_are_reported_before_redaction(tmp_path: Path) -> None:
    wrong = "required: null, properties: {ssn: {redact: {strategy: block}}, id: {type: integer}, who"

    found = issues(tmp_path, BASE.replace("properties: {id: {type: integer}, who", wrong))

    assert [issue.code for issue in found] == ["E403"]
