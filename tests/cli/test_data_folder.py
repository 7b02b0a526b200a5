"""Commands that only read: they create nothing, and do with a data folder that nobody may write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import flowctl

from derive.catalog import load

CATALOG = """
collections:
  d/events: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  d/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: d/events, shuffle: any, lambda: SELECT $id;}]}
"""
READING = [
    ["status"],
    ["collections", "list"],
    ["collections", "read", "--collection", "d/copies"],
    ["logs"],
    ["logs", "--task", "d/copies"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_catalog(tmp_path, CATALOG)
    return tmp_path


def stored(folder: Path) -> World:
    """A data folder with two documents, in use until it is closed."""
    world = World(folder / "data", load(folder / "flow.yaml"), wall=1_700_000_000_000_000)
    world.ingest("d/events", [{"id": 1}, {"id": 2}], None)
    world.wall += 10_000_000
    world.step()
    return world


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "arguments",
    [
        *READING,
        ["reset", "--task", "d/copies"],
        ["split", "--task", "d/copies"],
        ["compact"],
        ["compact", "--dry-run"],
    ],
)
def test_a_mistyped_data_folder_is_an_error_and_is_not_created(folder: Path, arguments: list[str]) -> None:
    stored(folder).store.close()
    before = entries(folder)

    status, out, err = flowctl(folder, *arguments, "--data", "dta")

    assert (status, out) == (2, "")
    assert f"the data folder {folder}/dta does not exist" in err
    assert f"did you mean {folder}/data?" in err
    assert entries(folder) == before


def test_a_folder_that_holds_something_else_is_an_error(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "file").touch()
    status, out, err = flowctl(folder, "status", "--data", "other")
    assert (status, out) == (2, "")
    assert f"the data folder {folder}/other is not one: it has no metadata.db" in err
    assert "did you mean" not in err

    stored(folder).store.close()
    (folder / "data").rename(folder / ".flow")
    for named in ("other", "."):
        _, _, err = flowctl(folder, "status", "--data", named)
        assert f"did you mean {folder}/.flow?" in err


@pytest.mark.parametrize("data", [[], ["--data", "empty"]])
def test_before_anything_is_stored_there_is_nothing_to_tell_and_nothing_is_created(
    folder: Path, data: list[str]
) -> None:
    (folder / "empty").mkdir()
    before = entries(folder)

    status, out, _ = flowctl(folder, "status", *data)
    row = json.loads(out)
    assert (status, row["task"], row["state"], row["waiting"]) == (0, "d/copies", "never run", 0)
    status, out, _ = flowctl(folder, "collections", "list", *data)
    assert (status, [json.loads(line)["documents"] for line in out.splitlines()]) == (0, [0, 0])
    status, out, err = flowctl(folder, "collections", "read", "--collection", "d/copies", *data)
    assert (status, out) == (2, "")
    assert "nothing is stored in collection 'd/copies' yet" in err
    assert flowctl(folder, "logs", *data) == (0, "", "")
    assert flowctl(folder, "compact", "--dry-run", *data)[0] == 0

    assert entries(folder) == before


# A user who may not write

SCRIPT = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from derive.cli.main import main

def run(arguments):
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    sys.argv = ["flowctl", *arguments]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
    out.flush()
    return status, out.buffer.getvalue().decode(), err.getvalue()

commands, data, warm = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
for command in commands:  # what is imported on the way may lie where only its owner can read
    run([*command, "--data", warm])
os.umask(0)
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    Path(data, "probe").touch()
    print(json.dumps("writable"))
except PermissionError:
    print(json.dumps([run([*command, "--data", data]) for command in commands]))
"""


def as_another_user(folder: Path, data: Path, commands: list[list[str]]) -> list[tuple[int, str, str]]:
    """What commands say to a user who may read everything in the folder, and write nothing."""
    if not (folder / "warm").exists():
        shutil.copytree(data, folder / "warm", ignore=shutil.ignore_patterns("*-shm", "host.lock"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands), str(data), str(folder / "warm")],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(status, out, err) for status, out, err in json.loads(done.stdout)]


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that everybody can read; pytest keeps its own to their owner."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_catalog(folder, CATALOG)
        yield folder
        may_be_written(folder)


def may_only_be_read(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def may_be_written(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("state", ["in use", "at rest", "a copy"])
def test_a_user_who_may_only_read_can_look(readable: Path, state: str) -> None:
    world = stored(readable)
    data = world.root
    if state == "at rest":
        world.store.close()
    elif state == "a copy":
        world.store.close()
        for name in ("metadata.db-wal", "metadata.db-shm", "host.lock"):
            (data / name).unlink(missing_ok=True)
    may_only_be_read(data)
    before = entries(data)

    status, listed, read, logs, of_task = as_another_user(readable, data, READING)

    row = json.loads(status[1])
    assert (status[0], row["state"], row["documents in"], row["waiting"]) == (0, "idle", 2, 0)
    assert [json.loads(line)["documents"] for line in listed[1].splitlines()] == [2, 2]
    assert (read[0], read[1]) == (0, '{"id":1}\n{"id":2}\n')
    assert [json.loads(line)["message"] for line in logs[1].splitlines()] == ["committed"]
    assert of_task == logs
    assert [found[2] for found in (status, listed, read, logs)] == [""] * 4
    assert entries(data) == before
    world.store.close()


def test_a_user_who_may_only_read_sees_what_is_committed_meanwhile(readable: Path) -> None:
    world = stored(readable)
    data = world.root
    may_only_be_read(data)
    read = ["collections", "read", "--collection", "d/copies"]
    assert as_another_user(readable, data, [read])[0][1] == '{"id":1}\n{"id":2}\n'

    may_be_written(data)
    world.ingest("d/events", [{"id": 3}], None)
    world.wall += 10_000_000
    world.step()
    may_only_be_read(data)

    assert as_another_user(readable, data, [read])[0][1] == '{"id":1}\n{"id":2}\n{"id":3}\n'
    world.store.close()


def test_a_user_who_may_only_read_is_told_what_cannot_be_done(readable: Path) -> None:
    world = stored(readable)
    data = world.root
    may_only_be_read(data)

    (status, out, err), (other, _, said) = as_another_user(
        readable, data, [["reset", "--task", "d/copies"], ["split", "--task", "d/copies"]]
    )

    assert (status, out, other) == (1, "", 1)
    assert "Permission denied" in err
    assert "Permission denied" in said
    world.store.close()
