"""Errors as a person sees them, letter for letter."""

from pathlib import Path

import pytest

from derive.cli.console import render_error
from derive.errors import CatalogError, FlowError, Issue, SqlError
from derive.position import Position


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "flow.yaml"
    file.write_text("a:\n  source: acme/transfer\n\tkey: [/é]\n", encoding="utf-8")
    return file


def issue(line: int, column: int, length: int, hint: str | None) -> Issue:
    return Issue("E204", "collection 'acme/transfer' is not defined", Position("flow.yaml", line, column, length), hint)


def test_issue_shows_its_line_and_a_suggestion(catalog: Path) -> None:
    error = CatalogError([issue(2, 11, 13, "did you mean 'acme/transfers'?")])

    assert render_error(error) == (
        "error[E204]: collection 'acme/transfer' is not defined\n"
        "  --> flow.yaml:2:11\n"
        "2 |   source: acme/transfer\n"
        "  |           ^^^^^^^^^^^^^ did you mean 'acme/transfers'?\n"
        "\n"
        "1 error"
    )


def test_all_issues_are_shown_in_file_order(catalog: Path) -> None:
    error = CatalogError([issue(3, 8, 2, None), issue(1, 1, 0, None)])

    assert render_error(error) == (
        "error[E204]: collection 'acme/transfer' is not defined\n"
        "  --> flow.yaml:1:1\n"
        "1 | a:\n"
        "  | ^\n"
        "\n"
        "error[E204]: collection 'acme/transfer' is not defined\n"
        "  --> flow.yaml:3:8\n"
        "3 | \tkey: [/é]\n"
        "  | \t      ^^\n"
        "\n"
        "2 errors"
    )


def test_underline_ends_with_the_line(catalog: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 1, 2, 40))

    assert render_error(error) == "error: odd\n  --> flow.yaml:1:2\n1 | a:\n  |  ^"


def test_excerpt_marks_a_position_after_the_end_of_the_line(catalog: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 1, 4, 3))

    assert render_error(error) == "error: odd\n  --> flow.yaml:1:4\n1 | a:\n  |    ^"


@pytest.mark.parametrize(
    "position",
    [
        Position("gone.yaml", 1, 1, 4),  # the file has gone
        Position("flow.yaml", 99, 1, 4),  # the line has gone
    ],
)
def test_excerpt_without_its_line_shows_the_hint_alone(catalog: Path, position: Position) -> None:
    error = FlowError("odd", position=position, hint="look again")

    assert render_error(error) == f"error: odd\n  --> {position}\n  = look again"


def test_excerpt_aligns_wide_and_combining_characters() -> None:
    error = SqlError("42703", 'column "nope" does not exist', detail="It never did.", hint="look again")
    error.position = Position("-c", 3, 16, 4, "SELECT '日本e\u0301', nope")

    assert render_error(error) == (
        'error[42703]: column "nope" does not exist\n'
        "  --> -c:3:16\n"
        "3 | SELECT '日本e\u0301', nope\n"
        "  |                 ^^^^ look again\n"
        "  = It never did."
    )


def test_excerpt_of_a_long_line_surrounds_the_fault() -> None:
    error = SqlError("42703", "odd")
    error.position = Position("-c", 1, 301, 3, "a" * 300 + "bad" + "c" * 300)

    assert render_error(error) == (
        f"error[42703]: odd\n  --> -c:1:301\n1 | …{'a' * 79}bad{'c' * 118}…\n  | {' ' * 80}^^^"
    )


def test_excerpt_and_hint_fit_a_terminal(catalog: Path) -> None:
    ways = "undo the edit; add the new results to the old ones: flowctl run --accept acme/sums"
    error = FlowError("odd", position=Position("-c", 12, 301, 3, "a" * 300 + "bad" + "c" * 300), hint=ways)

    assert render_error(error, 60) == (
        f"error: odd\n  --> -c:12:301\n12 | …{'a' * 20}bad{'c' * 30}…\n   | {' ' * 21}^^^\n"
        "  = undo the edit\n"
        "  = add the new results to the old ones: flowctl run --accept acme/sums"
    )
    assert render_error(FlowError("odd", hint=ways), 60).endswith(
        "odd\n" + "\n".join(f"  = {w}" for w in ways.split("; "))
    )
    assert render_error(FlowError("odd", hint=ways), 90) == f"error: odd\n  = {ways}"


def test_short_hint_stands_beside_the_carets_on_a_terminal(catalog: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 2, 11, 13), hint="look again")

    assert render_error(error, 80) == render_error(error)


def test_error_without_a_position_has_no_excerpt(catalog: Path) -> None:
    assert render_error(FlowError("odd", hint="look again")) == "error: odd\n  = look again"
