"""Data goes to standard output, everything else to standard error; colours only where they are wanted."""

import time

import pytest

from derive.cli.console import Progress, note, print_error, print_repeated, print_rows
from derive.errors import FlowError

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


def test_progress_without_a_terminal_is_one_line_at_the_end(capsys: Capture) -> None:
    with Progress() as progress:
        for count in range(1000):
            progress.show("acmeBank/first-send", count)
        progress.done("acmeBank/first-send", 1234567)

    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("acmeBank/first-send                   1,234,567 documents ")
    assert line.endswith("  00:00.0")


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
