"""YAML keeps the place of every value, also where an anchor is merged."""

from __future__ import annotations

import pytest

from derive.catalog.language.yaml import Located, parse_yaml
from derive.errors import CatalogError

TEXT = """\
base: &base
  lambda: |
    SELECT 1;
  shuffle: {lambda: SELECT 2 }
more: &more {priority: 1}
one: {<<: *base, lambda: SELECT 3 }
both:
  <<: [*more, *base]
"""


def place(path: str, text: str = TEXT) -> tuple[object, int, int]:
    file = parse_yaml(text, "flow.yaml")
    at = Located(file, (), file.value)
    for name in path.split("/"):
        at = at[name]
    return at.value, at.position.line, at.position.column


def test_merged_values_have_the_positions_of_their_anchors() -> None:
    assert place("one/lambda") == ("SELECT 3", 6, 26)
    assert place("one/shuffle/lambda") == ("SELECT 2", 4, 21)
    assert place("both/lambda") == ("SELECT 1;\n", 2, 11)
    assert place("both/priority") == (1, 5, 24)


def test_merged_code_has_the_positions_of_its_characters() -> None:
    file = parse_yaml(TEXT, "flow.yaml")

    script = Located(file, (), file.value)["both"]["lambda"].script()

    assert script.locate(script.text.index("1")).line == 3
    assert script.locate(script.text.index("1")).column == 12


def test_scalars_follow_yaml_1_2() -> None:
    text = "[yes, on, 2024-01-01, 0o17, 0x1F, 017, 1_000, .5, 1e3, ~, '', null, True, '1', 12:30:45]"

    value = parse_yaml(text, "x.yaml").value

    assert value == ["yes", "on", "2024-01-01", 15, 31, 17, "1_000", 0.5, 1000.0, None, "", None, True, "1", "12:30:45"]  # fmt: skip


def test_aliases_are_limited_in_number_of_values() -> None:
    lines = ["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))]

    with pytest.raises(CatalogError) as caught:
        parse_yaml("\n".join(lines), "flow.yaml")
    (issue,) = caught.value.issues
    assert issue.message == "after aliases are replaced, the file has more than 1,000,000 values"
    assert (issue.position.line, issue.position.column) == (7, 45)  # the eighth of them


def test_aliases_are_limited_in_depth() -> None:
    deep = "[" * 150 + "x" + "]" * 150
    inner = "[" * 60 + "*a" + "]" * 60

    with pytest.raises(CatalogError, match="values are nested in more than 200 others"):
        parse_yaml(f"a: &a {deep}\nb: {inner}", "flow.yaml")


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: 1\nb: {c: 1\n", "E001", 2, 4),  # never closed: where it begins
        ("a: 1\na: 2", "E002", 2, 1),  # a property twice
        ("a: *b", "E001", 1, 4),  # no such anchor
        ("a: 1\n---\nb: 2", "E001", 2, 1),  # a second document
        ("a:\n\tb: 1", "E001", 2, 1),  # a tab where spaces indent
        ("? [a]\n: 1", "E001", 1, 3),  # a property name that is no string
    ],
)
def test_parser_reports_faults(text: str, code: str, line: int, column: int) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_yaml(text, "x.yaml")

    issue = caught.value.issues[0]
    assert (issue.code, issue.position.line, issue.position.column) == (code, line, column)


@pytest.mark.parametrize(
    "text", ["a:\n\tb: 1", "a:\n  b: 1\n\tc: 1", "a:\n \tb: 1", "a:\n\t- 1", "a:\n- \tb: 1\n  c: 1"]
)
def test_parser_reports_a_tab_that_indents(text: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_yaml(text, "x.yaml")

    assert caught.value.issues[0].message == "not YAML: a tab indents this line, but only spaces may indent"


def test_property_that_is_defined_twice_names_its_first_line() -> None:
    with pytest.raises(CatalogError) as caught:
        parse_yaml("a: {x: 1}\nb: 2\na: {y: 1}", "x.yaml")

    assert caught.value.issues[0].hint == "join it with the one in line 1"
