"""A reader that goes away, as `head` does: the command ends quietly, whatever the command is."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS

CATALOG = """
collections:
  a/collection-of-transfers-with-a-long-name: &events
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  a/copies-of-transfers-with-a-long-name:
    <<: *events
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: copy, source: a/collection-of-transfers-with-a-long-name, shuffle: any, lambda: SELECT $id}
tests:
  a/test:
    - verify: {collection: a/copies-of-transfers-with-a-long-name, documents: []}
"""
COMMANDS = (
    ("check", "-o", "json"),
    ("collections", "list"),
    ("collections", "list", "-o", "table"),
    ("collections", "read", "--collection", "a/copies-of-transfers-with-a-long-name"),
    ("collections", "read", "--collection", "a/copies-of-transfers-with-a-long-name", "--reduce"),
    ("compact", "--dry-run"),
    ("connector", "list"),
    ("graph",),
    ("json-schema",),
    ("logs",),
    ("logs", "-o", "table"),
    ("sql", "-c", "SELECT * FROM generate_series(1, 20000)"),
    ("sql", "-c", "SELECT * FROM generate_series(1, 20000)", "-o", "csv"),
    ("sql", "-c", "SELECT * FROM generate_series(1, 20000)", "-o", "table"),
    ("sql", "-c", "COPY (SELECT * FROM generate_series(1, 20000)) TO STDOUT"),
    ("status",),
    ("status", "-o", "table"),
    ("test",),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog's folder, with 20,000 documents that were derived from."""
    folder = tmp_path_factory.mktemp("pipes")
    write_catalog(folder, CATALOG)
    (folder / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(20_000)))
    for arguments in (
        ("ingest", "--collection", "a/collection-of-transfers-with-a-long-name", "in.jsonl"),
        ("run", "--until-idle"),
    ):
        assert flowctl(folder, *arguments)[0] == 0
    return folder


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_end_without_an_error_if_their_output_is_closed(folder: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with Flowctl(arguments, cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
            _, err = process.communicate()
    finally:
        os.close(writing)

    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_ingest_loads_all_files_if_standard_error_is_closed(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    for name in ("1", "2"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": {name}}}\n')
    reading, writing = os.pipe()
    os.close(reading)
    collection = "a/collection-of-transfers-with-a-long-name"
    arguments = ("ingest", "--collection", collection, "1.jsonl", "2.jsonl")
    with Flowctl(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writing) as process:
        os.close(writing)

    assert process.returncode == 0
    _, out, _ = flowctl(tmp_path, "collections", "read", "--collection", collection)
    assert out == '{"id":1}\n{"id":2}\n'


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("redirected", "arguments", "status", "message"),
    [
        ("<&-", "ingest --collection a/collection-of-transfers-with-a-long-name", 2, "cannot read standard input"),
        ("<&-", "sql", 2, "cannot read standard input"),
        (">&-", "status", 1, "standard output cannot be written"),
        (">/dev/full", "status", 1, "standard output cannot be written: No space left on device"),
        (">/dev/full", "--version", 1, "standard output cannot be written: No space left on device"),
        ("2>&-", "status", 0, ""),
        ("2>/dev/full", "status", 0, ""),
        ("<&- >&- 2>&-", "run --until-idle", 0, ""),
    ],
)
def test_commands_accept_closed_and_full_streams(
    folder: Path, redirected: str, arguments: str, status: int, message: str
) -> None:
    command = f'"$1" -c "from derive.cli.main import main; main()" {arguments} {redirected}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == status, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def shown_on_terminal(folder: Path, columns: int, *arguments: str) -> list[str]:
    """The lines that a command shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = Flowctl(arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # Linux: the terminal's other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    assert process.wait(PATIENCE_SECONDS) == 0
    text = b"".join(pieces).decode().replace("\x1b[1m", "").replace("\x1b[0m", "")
    return text.replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("command", [("status",), ("collections", "list")], ids=" ".join)
def test_tables_on_narrow_terminals_hide_columns_and_fold_nothing(folder: Path, command: tuple[str, ...]) -> None:
    lines = shown_on_terminal(folder, 80, *command)
    wide = shown_on_terminal(folder, 80, *command, "--wide")

    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if line.startswith("a/copies-of-transfers-with-a-long-name "))
    assert "20,000" in row
    assert any(line.startswith("--wide also shows ") for line in lines)  # a note of one or more lines
    assert max(map(len, wide)) <= 80  # records
    (first,) = (line for line in wide if line.endswith(" a/copies-of-transfers-with-a-long-name"))
    assert first.startswith(("task ", "collection ", "name "))
    assert "--wide" not in wide[-1]


def test_connector_of_a_killed_parent_exits_with_0() -> None:
    """Lines that the parent has not read are lost with it, and are no failure of the connector."""
    script = """
import sys
from contextlib import suppress
import connectors.kit.servicer as serving
from derive.cli.main import main
def serve(connector, listen):
    with suppress(BrokenPipeError):
        sys.stderr.write("a session has ended\\n")
serving.serve = serve
sys.argv = ["flowctl", "connector", "serve", "materialize-sqlite"]
main()
"""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=writer, env=environment) as process:
        os.close(writer)
    assert process.returncode == 0
