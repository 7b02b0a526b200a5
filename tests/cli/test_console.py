"""Output of commands: data, tables, errors with excerpts, progress, and no control characters of foreign text."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import pty
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from click import Context, Group
from click.exceptions import Exit
from conftest import write_catalog
from forked_flowctl import BARE, Flowctl, flowctl
from hypothesis import given
from hypothesis import strategies as st

from derive.cli import main
from derive.cli.applying import ask_to_fence
from derive.cli.console import (
    Progress,
    _stderr,
    columns_of,
    fit,
    fitted,
    lines_of,
    note,
    print_error,
    print_repeated,
    print_rows,
    records_of,
    render_error,
    use_json,
    use_quiet,
    visible,
    visible_line,
)
from derive.cli.foreground import stopping
from derive.errors import CatalogError, Fact, FlowError, Issue, LambdaError, SqlError, document_fact
from derive.position import Position
from derive.storage.capability.table import Capability

Capture = pytest.CaptureFixture[str]
ROWS = [{"task": "a/b", "in": 1234567, "error": None}, {"task": "c", "in": 2, "error": "[red]no[/red]"}]


def test_json_output_has_one_complete_object_per_line(capsys: Capture) -> None:
    print_rows(["task"], ROWS, "json")

    assert capsys.readouterr().out == (
        '{"task":"a/b","in":1234567,"error":null}\n{"task":"c","in":2,"error":"[red]no[/red]"}\n'
    )


def test_json_is_the_default_output_without_a_terminal(capsys: Capture) -> None:
    print_rows(["task"], [{"task": "a"}], None)

    assert capsys.readouterr().out == '{"task":"a"}\n'


def test_a_table_aligns_numbers_and_shows_data_as_it_is(capsys: Capture) -> None:
    print_rows(["task", "in", "error"], ROWS, "table")

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["task         in  error", "a/b   1,234,567", "c             2  [red]no[/red]"]


def test_table_aligns_numbers_even_if_some_are_missing(capsys: Capture) -> None:
    values = [1234567.0625, None, 0.1, -2, 1e-7, 9007199254740993]
    print_rows(["n", "flag"], [{"n": value, "flag": True} for value in values], "table")

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "                    n  flag",
        "       1,234,567.0625  True",
        "                       True",
        "                  0.1  True",
        "                   -2  True",
        "                1e-07  True",
        "9,007,199,254,740,993  True",
    ]


def test_an_empty_table_has_a_header_and_empty_json_nothing(capsys: Capture) -> None:
    print_rows(["task"], [], "table")
    print_rows(["task"], [], "json")

    assert capsys.readouterr().out.split() == ["task"]


def test_errors_and_notes_stay_off_standard_output(capsys: Capture) -> None:
    print_error(FlowError("[bold]odd[/bold]", hint="look again"))
    note("by the way")

    assert capsys.readouterr() == ("", "error: [bold]odd[/bold]\n  = look again\nby the way\n")


def test_progress_without_a_terminal_is_one_line_at_the_end(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    with Progress() as progress:
        for count in range(1000):
            progress.show("acmeBank/first-send", count)
        progress.done("acmeBank/first-send", 1234567)

    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("acmeBank/first-send                   1,234,567 documents ")
    assert line.endswith("  0:00.0")


def test_progress_on_a_terminal_is_live_below_notes(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        note("before")
        progress.show("a/b", 0)
        time.sleep(0.3)
        progress.show("a/b", 1234)
        note("while")
        progress.done("a/b", 2345)
    note("after")

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("before\n")
    assert "1,234 documents" in err
    assert err.index("1,234 documents") < err.index("while") < err.index("2,345 documents")
    assert err.endswith("after\n")


def test_output_goes_to_its_file_while_progress_is_live(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress() as progress:
        now[0] += 1
        progress.show("a/b", 1234)
        sys.stdout.write("a row\n")

    out, err = capsys.readouterr()
    assert out == "a row\n"
    assert "1,234 documents" in err


def test_live_progress_shows_the_time_during_a_long_step(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("derive.cli.console._TICK_SECONDS", 0.001)
    with Progress() as progress:
        progress.show("a/b", 0)
        shown = ""
        while "0 documents" not in shown:
            shown += capsys.readouterr().err
        ticking = [thread for thread in threading.enumerate() if thread.name == "progress"]
        progress.pause()
        capsys.readouterr()
        for thread in ticking:
            thread.join()
        assert capsys.readouterr().err == ""


def test_progress_of_a_background_job_draws_over_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a process in the background writes whole lines only, also if it drew live lines before."""
    foreground, now, said = [os.getpgrp()], [1000.0], Terminal()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: foreground[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Terminal, "fileno", lambda _: 2)
    monkeypatch.setattr("sys.stderr", said)
    monkeypatch.setenv("TERM", "xterm")
    _stderr.cache_clear()
    with Progress() as progress:
        now[0] += 1
        progress.show("a/b", 1)
        assert "1 document" in said.getvalue()
        assert stopping() == "stop with Ctrl-C"

        foreground[0], begin = 0, said.tell()  # bg
        note("by the way")
        now[0] += 11
        progress.show("a/b", 2)
        progress.done("a/b", 3)
        print_error(FlowError("odd"))
        text = re.sub("\x1b\\[(?:\\?25h|[0-9;]*m)", "", said.getvalue()[begin:])  # without colours, and with the cursor
        assert [line.split("  ")[0] for line in text.splitlines()] == ["by the way", "a/b", "a/b", "error: odd"]
        assert "\x1b" not in text
        assert stopping() == f"stop with: kill {os.getpid()}"

        foreground[0], begin = os.getpgrp(), said.tell()  # fg
        now[0] += 1
        progress.show("a/b", 4)
        assert re.search("4 documents [^\n]*$", said.getvalue()[begin:])
    _stderr.cache_clear()


LONG = "a-company/with-a-department/and-a-collection-of-a-long-name/and-a-part"


@pytest.mark.parametrize(
    ("work", "width", "count", "options", "line"),
    [  # 60 s after the start
        ("a/b", 80, 1_200_000, {}, f"a/b{' ' * 33}1,200,000 documents      20,000/s   1:00.0"),
        (
            "a/b",
            80,
            600_000,
            {"total": 2_400_000},
            f"a/b{' ' * 23}25 % of 2,400,000 documents      10,000/s  3:00 left",
        ),
        ("a/b", 80, 600_000, {"total": 600_000, "before": 600_000}, f"a/b{' ' * 24}100 % of 1,200,000 documents"),
        ("a/b", 80, 600_000, {"share": 0.01}, f"a/b{' ' * 24}600,000 documents   1 %      10,000/s  1:39:00 left"),
        (
            LONG,
            80,
            600_000,
            {"total": 2_400_000},
            "…-a-long-name/and-a-part  25 % of 2,400,000 documents      10,000/s",
        ),
        (LONG, 50, 600_000, {"total": 2_400_000}, "…ong-name/and-a-part 25 % of 2,400,000 documents"),
        (LONG, 30, 600_000, {"total": 2_400_000}, "… 25 % of 2,400,000 documents"),
        ("a/b", 80, 0, {"total": 1}, f"a/b{' ' * 32}running                 1:00.0"),
        ("a/b", 80, 0, {"total": 1, "share": 0.25}, f"a/b{' ' * 32} 25 %                3:00 left"),
        ("a/b", 80, 1, {"total": 4, "share": 0.5}, f"a/b{' ' * 30} 37 % of 4 documents                1:40 left"),
        ("a/b", 80, 1, {}, f"a/b{' ' * 42}1 document                 1:00.0"),
    ],
)
def test_progress_fits_the_terminal(
    work: str,
    width: int,
    count: int,
    options: dict[str, Any],
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """Law: a live line has at most as many characters as the terminal, and keeps the end of a long name."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    _stderr.cache_clear()
    _stderr()  # as if another command of this process had used a narrow terminal
    monkeypatch.setenv("COLUMNS", str(width))
    with Progress() as progress:
        progress.show(work, 0)
        now[0] += 60
        progress.show(work, count, **options)

    *_, shown = filter(None, re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)))
    assert len(shown) <= width
    if line is not None:
        assert shown.startswith(line)


def test_quiet_commands_write_only_warnings_and_errors(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("derive.cli.console._form.is_quiet", False)  # and so it is again after the test
    use_quiet()
    with Progress() as progress:
        progress.show("a/b", 0)
        progress.done("a/b", 5)
    note("by the way")
    note("look out", level="warn")
    print_error(FlowError("odd"))

    assert capsys.readouterr() == ("", "look out\nerror: odd\n")


def test_repeated_errors_are_printed_at_growing_intervals(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    error = FlowError("the database at 'x' cannot be reached", hint="start it")

    reported = []
    for _ in range(100):
        print_repeated(error, "r/reports stopped", task="r/reports")
        if text := capsys.readouterr().err:
            reported.append((now[0] - 1000, text))
        now[0] += 10

    whole = "r/reports stopped\nerror: the database at 'x' cannot be reached\n  = start it\n"
    assert reported[0] == (0, whole)
    assert [at for at, _ in reported] == [0, 60, 180, 540]
    assert reported[1][1] == "r/reports: the database at 'x' cannot be reached (again, 6 times in 60 s)\n"

    now[0] += 300
    print_repeated(error, "r/reports stopped", task="r/reports")
    assert capsys.readouterr().err == whole  # it had been well meanwhile


def test_different_error_between_repeated_errors_is_printed_whole(capsys: Capture) -> None:
    for message in ("first", "second", "first", "second"):
        print_repeated(FlowError(message))

    assert capsys.readouterr().err == "error: first\nerror: second\n"


# Tables as text: nothing inside a name or a number is folded, whatever the width.

VALUES = st.none() | st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=50) | st.integers(0, 10**12)
NAMES = ("task", "state", "documents in", "upper", "readers")
ANY_ROWS = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)), max_size=5)


def text_of(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@given(ANY_ROWS, st.none() | st.integers(1, 250), st.permutations(NAMES[1:]))
def test_tables_show_whole_cells_and_omit_columns_to_fit(
    rows: list[dict[str, Any]], width: int | None, spare: list[str]
) -> None:
    """A row is one line with all its shown cells whole; lines are longer than the terminal only if none can be spared."""
    shown, hidden = fit(columns_of(NAMES, rows, len), width, spare)
    header, *lines = lines_of(shown, len)

    assert sorted([*(column.name for column in shown), *hidden]) == sorted(NAMES)
    assert len(lines) == len(rows)
    for line, row in zip([header, *lines], [dict(zip(NAMES, NAMES, strict=True)), *rows], strict=True):
        assert line.split() == [part for column in shown for part in text_of(row[column.name]).split()]
    if width is None:
        assert hidden == []
    elif len(shown) > 1:
        assert max(map(len, (header, *lines))) <= width


def test_tables_leave_out_the_most_dispensable_columns_first() -> None:
    rows = [{"task": "a/task", "state": "idle", "in": 1234567, "upper": "2026-11-26T14:27:56.000000Z"}]
    columns = columns_of(("task", "state", "in", "upper"), rows, len)

    shown, hidden = fit(columns, 30, ("upper", "in", "state"))

    assert hidden == ["upper"]
    assert lines_of(shown, len) == ["task    state         in", "a/task  idle   1,234,567"]
    assert fit(columns, 60, ("upper", "in", "state")) == (columns, [])
    assert fit(columns, 22, ("upper", "in", "state"))[1] == ["in", "upper"]


def test_rows_that_are_too_wide_become_records() -> None:
    rows: list[dict[str, Any]] = [{"task": "a/task", "state": "idle"}, {"task": "b", "state": None}]

    assert records_of(columns_of(("task", "state"), rows, len), len) == [
        *("task   a/task", "state  idle", ""),
        *("task   b", "state"),
    ]


def test_records_put_a_long_cell_on_lines_of_its_own() -> None:
    rows = [{"name": "a/short", "readers": "a/long-name-of-a-task from 2026 on, b/other"}]

    assert records_of(columns_of(("name", "readers"), rows, len), len, 30) == [
        *("name     a/short", "readers", "  a/long-name-of-a-task from", "  2026 on, b/other"),
    ]


# Errors as a person sees them, letter for letter.


@pytest.fixture
def flow_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "flow.yaml"
    file.write_text("a:\n  source: acme/transfer\n\tkey: [/é]\n", encoding="utf-8")
    return file


def issue(line: int, column: int, length: int, hint: str | None) -> Issue:
    return Issue("E204", "collection 'acme/transfer' is not defined", Position("flow.yaml", line, column, length), hint)


def test_issue_shows_its_line_and_a_suggestion(flow_yaml: Path) -> None:
    error = CatalogError([issue(2, 11, 13, "did you mean 'acme/transfers'?")])

    assert render_error(error) == (
        "error[E204]: collection 'acme/transfer' is not defined\n"
        "  --> flow.yaml:2:11\n"
        "2 |   source: acme/transfer\n"
        "  |           ^^^^^^^^^^^^^ did you mean 'acme/transfers'?\n"
        "\n"
        "1 error"
    )


def test_all_issues_are_shown_in_file_order(flow_yaml: Path) -> None:
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


def test_underline_ends_with_the_line(flow_yaml: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 1, 2, 40))

    assert render_error(error) == "error: odd\n  --> flow.yaml:1:2\n1 | a:\n  |  ^"


def test_excerpt_marks_a_position_after_the_end_of_the_line(flow_yaml: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 1, 4, 3))

    assert render_error(error) == "error: odd\n  --> flow.yaml:1:4\n1 | a:\n  |    ^"


@pytest.mark.parametrize(
    "position",
    [
        Position("gone.yaml", 1, 1, 4),  # the file has gone
        Position("flow.yaml", 99, 1, 4),  # the line has gone
    ],
)
def test_excerpt_without_its_line_shows_the_hint_alone(flow_yaml: Path, position: Position) -> None:
    error = FlowError("odd", position=position, hint="look again")

    assert render_error(error) == f"error: odd\n  --> {position}\n  = look again"


def test_facts_have_lines_of_their_own_and_are_part_of_the_message(flow_yaml: Path) -> None:
    facts = [document_fact('{"id":1}'), Fact("output", ", with the output ", "odd")]
    error = LambdaError("lambda failed", position=Position("flow.yaml", 1, 1, 1), hint="look again", facts=facts)

    for one in (error, FlowError.from_json(error.to_json()), pickle.loads(pickle.dumps(error))):
        assert one.message == 'lambda failed; the document was {"id":1}, with the output odd'
        assert render_error(one) == (
            'error: lambda failed\n  document: {"id":1}\n  output: odd\n  --> flow.yaml:1:1\n1 | a:\n  | ^ look again'
        )


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


def test_excerpt_and_hint_fit_a_terminal(flow_yaml: Path) -> None:
    ways = "undo the edit; add the new results to the old ones: flowctl run --accept acme/sums"
    error = FlowError("odd", position=Position("-c", 12, 301, 3, "a" * 300 + "bad" + "c" * 300), hint=ways)

    assert render_error(error, 60) == (
        f"error: odd\n  --> -c:12:301\n12 | …{'a' * 20}bad{'c' * 30}…\n   | {' ' * 21}^^^\n"
        "  = undo the edit\n"
        "  = add the new results to the old ones:\n"
        "    flowctl run --accept acme/sums"
    )
    assert render_error(FlowError("odd", hint=ways), 90) == f"error: odd\n  = {ways}"


def test_short_hint_stands_beside_the_carets_on_a_terminal(flow_yaml: Path) -> None:
    error = FlowError("odd", position=Position("flow.yaml", 2, 11, 13), hint="look again")

    assert render_error(error, 80) == render_error(error)


def test_error_without_a_position_has_no_excerpt(flow_yaml: Path) -> None:
    assert render_error(FlowError("odd", hint="look again")) == "error: odd\n  = look again"


# Nothing that a document, a lambda or an endpoint says reaches a terminal as a control character.

CLI = Path(__file__).parents[2] / "derive" / "cli"
EVIL = "\x1b[2J\x1b]0;owned\x07\r\b\x00\x7f\x85\x9b31m\u202egnol\u2066x\u2028y"
SENT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_visible_escapes_control_characters_only(text: str) -> None:
    shown = visible(text)

    assert not SENT.search(shown)
    assert not any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in shown)
    assert "\n" not in visible_line(text)
    if not SENT.search(text):
        assert shown == text


def test_visible_shows_hidden_characters() -> None:
    assert visible(EVIL) == (r"\x1b[2J\x1b]0;owned\x07\r\b\x00\x7f\x85\x9b31m\u202egnol\u2066x\u2028y")
    assert visible("Ünïcødé 日本 🎉 e\u0301 \t\n") == "Ünïcødé 日本 🎉 e\u0301 \t\n"
    assert visible_line("one\ntwo\r\n") == r"one\ntwo\r\n"


def test_notes_errors_and_tables_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"a task says {EVIL}")
    print_error(FlowError(f"it is {EVIL}", hint=f"not {EVIL}"))
    print_rows(["name"], [{"name": EVIL}, {"name": [EVIL, "b"]}, {"name": "two\nlines"}], "table")

    out, err = capsys.readouterr()
    assert not SENT.search(out + err)
    assert [text.count(r"\x1b[2J") for text in (out, err)] == [2, 3]
    assert r"two\nlines" in out


def test_json_output_keeps_control_characters_as_json_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_rows(["name"], [{"name": EVIL}], "json")
    monkeypatch.setattr("derive.cli.console._form.is_json", False)  # and so it is again after the test
    use_json()
    note(EVIL)

    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == json.loads(err)["message"] == EVIL


# Every door

RAW = {
    ("collections.py", "show(rows)"),  # documents, as they are
    ("collections.py", "show(with_deletions(update))"),
    ("collections.py", "upper"),
    ("compute.py", "server.address"),
    ("console.py", "records_of"),  # of cells that were made visible
    ("console.py", "line + "),  # `_print` has made it visible
    ("console.py", "orjson.dumps"),
    ("console.py", "for line in (header"),  # of cells of `table.py`
    ("explanations.py", "for part in parts"),  # of a line that was made visible
    ("graph.py", "visible"),
    ("init.py", "click.format_filename"),
    ("generate.py", "json.dumps"),
    ("logs.py", "orjson.dumps(entry)"),
    ("logs.py", "styled"),  # made visible above
    ("main.py", "'stopped'"),
    ("materialize.py", "visible"),
    ("plan.py", "dump_exact"),
    ("plan.py", "_lines"),  # made visible there
    ("plan.py", "_summary"),
    ("preview.py", "dump_exact"),
    ("preview.py", "heading"),  # made visible above
    ("preview.py", "fitted(line)"),  # made visible above
    ("ingest.py", "orjson.dumps"),
    ("follow.py", "orjson.dumps"),
    ("test.py", "reached: "),  # numbers
    ("test.py", "removeprefix"),  # of a text that was made visible
    ("sql.py", "orjson.dumps"),
    ("sql.py", "line.rstrip()"),  # of cells that were made visible
    ("sql_serve.py", "visible"),
    ("state.py", "dump_exact"),
    ("ui.py", "url + "),  # of the address of this server
    ("why.py", "dump_exact"),
    ("completion.py", "completion.source_vars"),
    ("discover.py", "text, nl=False"),  # YAML, which escapes control characters
    ("main.py", "versions.items()"),
    ("sql_serve.py", "address"),
    ("test.py", "junit_report"),  # made visible there
    ("test.py", "failure}"),  # made visible above
    ("test.py", "tally"),
    ("test.py", "test.text"),  # JSON, which escapes control characters
    ("test.py", "json_report"),
}
"""How each statement of a command that writes to the terminal is known to write nothing of others, by a part of it."""


def doors() -> Iterator[tuple[str, str]]:
    for path in sorted(CLI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {"sys.stdout.write", "sys.stderr.write", "click.echo", "print", "click.secho"}:
                    yield path.name, ast.unparse(node)


def test_outputs_of_foreign_text_are_all_escaped() -> None:
    found = list(doors())
    assert len(found) > 15
    for file, text in found:
        assert "visible" in text or any(file == known and part in text for known, part in RAW), (file, text)


# And through them

CATALOG = """
collections:
  d/events: {schema: {type: object, required: [id, v], properties: {id: {type: integer}, v: {type: string}}}, key: [/id]}
  d/copies:
    schema: {type: object, required: [id, v], properties: {id: {type: integer}, v: {const: none}}}
    key: [/v]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: d/events, shuffle: any, lambda: "SELECT $id, $v;"}]}
tests:
  d/tests/one:
    - ingest: {collection: d/events, documents: [{id: 1, v: "\\e[2J\\u202e"}]}
    - verify: {collection: d/events, documents: [{id: 1, v: other}]}
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("terminal", [False, True])
def test_commands_print_no_control_characters_of_documents(tmp_path: Path, *, terminal: bool) -> None:
    write_catalog(tmp_path, CATALOG)
    lines = [json.dumps({"id": 1, "v": EVIL}, ensure_ascii=False), json.dumps({"id": "x" + EVIL, "v": "a"})]
    (tmp_path / "good.jsonl").write_text(lines[0] + "\n")
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n")
    said = []
    for arguments in (
        ["ingest", "--collection", "d/events", "bad.jsonl"],
        ["ingest", "--collection", "d/events", "good.jsonl"],
        ["run", "--until-idle", "--local-documents", "9"],
        ["status", "-o", "table"],
        ["logs", "-o", "table"],
        ["collections", "list", "-o", "table"],
        ["sql", "-o", "table", "-c", 'SELECT v FROM "d/events"'],
        ["sql", "-c", 'SELECT CAST(v AS integer) FROM "d/events"'],
        ["test"],
    ):
        said.append((arguments, (on_terminal if terminal else off_terminal)(tmp_path, arguments)))

    for arguments, text in said:
        # A terminal is sent colours, and live lines are drawn over those before; a document's are shown.
        left = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", text) if terminal else text
        assert not SENT.search(left), (arguments, text)
    shown = "".join(text for _, text in said)
    assert len(re.findall(r"\\(?:x1b|u001b)\[2J", shown)) >= 5


def off_terminal(folder: Path, arguments: list[str]) -> str:
    _, out, err = flowctl(folder, *arguments)
    return out + err


def on_terminal(folder: Path, arguments: list[str]) -> str:
    """Return the output of a command on a terminal: it may have its own colours, and does not clear the screen."""
    ours, theirs = pty.openpty()
    env = {**BARE, "TERM": "xterm", "COLUMNS": "400"}
    with Flowctl(arguments, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env):
        os.close(theirs)
        read = b""
        with suppress(OSError):  # the command has closed the terminal
            while piece := os.read(ours, 1 << 16):
                read += piece
    os.close(ours)
    text = read.decode()
    assert "\x1b[2J\x1b]0;" not in text
    assert "\u202e" not in text
    return text


class Terminal(io.StringIO):
    """A stream of a person."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("FAIL shop/tests/a-long-name · step 2", "FAIL shop/tests/a-long-name ·\n  step 2"),
        ("  a/b -> a_table (one row per key)", "  a/b -> a_table (one row per\n    key)"),
        ("a/name-that-is-longer-than-a-line-is is kept", "a/name-that-is-longer-than-a-line-is\n  is kept"),
        ("    is a/name-that-just-fits-the-line", "    is\n  a/name-that-just-fits-the-line"),
        ("CREATE TABLE t (\n  a text\n)", "CREATE TABLE t (\n  a text\n)"),
        ("load some now: flowctl ingest --collection a/b FILE", "load some now:\n  flowctl ingest --collection \\\n    a/b FILE"),
        ("  load it: flowctl run --until-idle", "  load it:\n    flowctl run --until-idle"),
        ("read it: flowctl run --watch; or wait", "read it: flowctl run --watch; or\n  wait"),
        ("kept (start over: flowctl reset --task a)", "kept (start over: flowctl reset\n  --task a)"),
        ("short", "short"),
    ],
)  # fmt: skip
def test_lines_of_a_narrow_terminal_end_between_words(text: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(text) == text
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "32")
    assert fitted(text) == lines


@pytest.mark.parametrize(("answer", "is_refused"), [("y\n", False), ("n\n", True), ("", True)])
def test_second_run_asks_on_a_terminal_before_it_fences_the_first(
    answer: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {name: Capability("id", "run", 0, 0, None, name, "host:7", None) for name in ("a/b", "a/c")}
    assert ask_to_fence(runs) is runs  # without a terminal

    said = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", said)
    assert ask_to_fence({}) == {}
    assert said.getvalue() == ""
    with pytest.raises(Exit) if is_refused else nullcontext():
        ask_to_fence(runs)
    assert said.getvalue().startswith("another flowctl run derives new documents already (host:7)\n")
    assert ("nothing was started" in said.getvalue()) is is_refused


QUIET = "backup collections compact discover generate ingest init prepare preview reset restore run split sql swap test verify"


@pytest.mark.parametrize("name", QUIET.split())
def test_commands_with_progress_or_notes_have_quiet(name: str) -> None:
    command = main.flowctl.get_command(Context(main.flowctl), name)
    assert command is not None
    commands = list(command.commands.values()) if name == "collections" and isinstance(command, Group) else [command]
    assert [["--quiet" in option.opts for option in each.params].count(True) for each in commands] == [1] * len(
        commands
    )
