"""Nothing that a document, a lambda or an endpoint says reaches a terminal as a control character."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import BARE, Flowctl, flowctl
from hypothesis import given
from hypothesis import strategies as st

from derive.cli.console import note, print_error, print_rows, use_json, visible, visible_line
from derive.errors import FlowError

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
    ("console.py", "line + "),  # `_print` has made it visible
    ("console.py", "orjson.dumps"),
    ("console.py", "for line in (header"),  # of cells of `table.py`
    ("graph.py", "visible"),
    ("init.py", "click.format_filename"),
    ("generate.py", "json.dumps"),
    ("logs.py", "orjson.dumps(entry)"),
    ("logs.py", "message}"),  # made visible above
    ("main.py", "'stopped'"),
    ("materialize.py", "visible"),
    ("plan.py", "dump_exact"),
    ("plan.py", "_lines"),  # made visible there
    ("plan.py", "_summary"),
    ("preview.py", "dump_exact"),
    ("preview.py", "effect.task"),  # names of the catalog
    ("ingest.py", "orjson.dumps"),
    ("sql.py", "orjson.dumps"),
    ("sql.py", "line.rstrip()"),  # of cells that were made visible
    ("sql_serve.py", "visible"),
    ("state.py", "dump_exact"),
    ("why.py", "dump_exact"),
    ("sql_serve.py", "address"),
    ("test.py", "result.seconds"),  # names of the catalog
    ("test.py", "failure}"),  # made visible above
    ("test.py", "tally"),
    ("test.py", "dump_exact"),
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
