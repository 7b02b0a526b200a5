"""Commands that only read: they create nothing, and do with a data folder that nobody may write."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import flowctl

import derive
from derive.catalog import load
from derive.cli.main import main
from derive.errors import StorageError
from derive.storage.compaction import compact
from derive.storage.metadata import opening
from derive.storage.metadata.identity import COMMITS, read_commits
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        *READING,
        ["sql", "-c", "SELECT 1"],
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
    assert f"{folder}/dta does not exist" in err
    assert f"did you mean {folder}/data?" in err
    assert entries(folder) == before


def test_a_command_that_writes_notes_a_new_data_folder_of_a_mistyped_name(folder: Path) -> None:
    stored(folder).store.close()
    create = ["sql", "-c", "CREATE TABLE t (a integer)", "--data"]

    assert flowctl(folder, *create, "data") == (0, "", "CREATE TABLE\n")
    assert flowctl(folder, *create, "dta") == (
        0,
        "",
        f"{folder}/dta becomes a new data folder; did you mean {folder}/data?\nCREATE TABLE\n",
    )


def test_check_notes_a_mistyped_data_folder_and_creates_none(folder: Path) -> None:
    status, _, err = flowctl(folder, "check", "--data", "dta")

    assert (status, f"{folder}/dta does not exist" in err, entries(folder)) == (0, True, ["flow.yaml"])


def test_folder_with_other_files_is_refused_as_data_folder(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "file").touch()
    status, out, err = flowctl(folder, "status", "--data", "other")
    assert (status, out) == (2, "")
    assert f"{folder}/other is not a data folder: it has no metadata.db" in err
    assert "did you mean" not in err

    stored(folder).store.close()
    (folder / "data").rename(folder / ".flow")
    for named in ("other", "."):
        _, _, err = flowctl(folder, "status", "--data", named)
        assert f"did you mean {folder}/.flow?" in err


@pytest.mark.parametrize("data", [[], ["--data", "empty"]])
def test_commands_report_and_create_nothing_before_anything_is_stored(folder: Path, data: list[str]) -> None:
    (folder / "empty").mkdir()
    before = entries(folder)

    status, out, _ = flowctl(folder, "status", *data)
    row = json.loads(out)
    assert (status, row["task"], row["state"], row["waiting"]) == (0, "d/copies", "never run", 0)
    status, out, _ = flowctl(folder, "collections", "list", *data)
    assert (status, [json.loads(line)["documents"] for line in out.splitlines()]) == (0, [0, 0])
    for options in ([], ["--reduce"], ["--history", "--key", "1"], ["--since", "1h"], ["--limit", "1"]):
        assert flowctl(folder, "collections", "read", "-q", "--collection", "d/copies", *data, *options) == (0, "", "")
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("state", ["in use", "at rest", "a copy"])
def test_read_only_user_can_use_reading_commands(readable: Path, state: str) -> None:
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


def test_read_only_user_can_read_a_folder_without_the_table_of_binding_shadows(readable: Path) -> None:
    world = stored(readable)
    world.store.close()
    db = sqlite3.connect(world.root / "metadata.db")
    db.execute("DROP TABLE shadow_binding")
    db.close()
    may_only_be_read(world.root)

    status, _, read, _, _, diff = as_another_user(readable, world.root, [*READING, ["diff"]])

    assert (status[0], json.loads(status[1])["state"], status[2]) == (0, "idle", "")
    assert read == (0, '{"id":1}\n{"id":2}\n', "")
    assert (diff[0], "there is no shadow" in diff[2]) == (2, True)


def test_read_only_user_sees_later_commits(readable: Path) -> None:
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


def test_read_only_user_gets_errors_for_writes(readable: Path) -> None:
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


# A data folder whose metadata is lost, or not its own, or not the latest: each command refuses, and nothing goes.


# `flowctl logs` reads files alone, and goes on: it may tell what happened.
COMMANDS = [
    ["run", "--until-idle", "--local-documents", "1000000"],
    ["compact"],
    ["compact", "--dry-run"],
    ["ingest", "--collection", "d/events", "more.jsonl"],
    ["status"],
    ["collections", "list"],
    ["collections", "read", "--collection", "d/events"],
    ["reset", "--task", "d/copies"],
    ["split", "--task", "d/copies"],
    ["sql", "-c", "SELECT 1"],
    ["sql", "serve", "--listen", "127.0.0.1:0"],
]


def in_this_process(arguments: list[str]) -> tuple[int, str, str]:
    """Return the message of a command that is expected to end before it does anything."""
    out, err, before = io.TextIOWrapper(io.BytesIO()), io.StringIO(), sys.argv
    sys.argv = ["flowctl", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    out.flush()
    status = ended.value.code
    assert isinstance(status, int)
    return status, out.buffer.getvalue().decode(), err.getvalue()


def filled(folder: Path, name: str = "data") -> Path:
    world = World(folder / name, load(write_catalog(folder, CATALOG)), wall=1_700_000_000_000_000)
    world.ingest("d/events", [{"id": 1}, {"id": 2}], None)
    world.wall += 10_000_000
    world.step()
    world.store.close()
    return world.root


def stored_count(data: Path) -> dict[str, bytes]:
    """All that was stored, by path; what SQLite keeps beside a database and what commands log is left out."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for folder in ("collections", "state")
        for path in sorted((data / folder).rglob("*"))
        if path.is_file()
    }


def remove(data: Path) -> None:
    for path in data.glob("metadata.db*"):
        path.unlink()


def empty(data: Path) -> None:
    remove(data)
    (data / "metadata.db").touch()


def zero(data: Path) -> None:
    size = (data / "metadata.db").stat().st_size
    remove(data)
    (data / "metadata.db").write_bytes(bytes(size))


def garble(data: Path) -> None:
    remove(data)
    (data / "metadata.db").write_bytes(b"PAR1" * 4096)


def truncate(data: Path) -> None:
    with sqlite3.connect(data / "metadata.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    text = (data / "metadata.db").read_bytes()
    remove(data)
    (data / "metadata.db").write_bytes(text[: len(text) // 2])


def without_tables(data: Path) -> None:
    remove(data)
    with sqlite3.connect(data / "metadata.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
    db.close()


def of_other_tables(data: Path) -> None:
    remove(data)
    with sqlite3.connect(data / "metadata.db") as db:
        db.execute("CREATE TABLE format (number)")
    db.close()


def of_another_folder(data: Path) -> None:
    other = filled(data.parent, "other")
    remove(data)
    shutil.copyfile(other / "metadata.db", data / "metadata.db")
    if (other / "metadata.db-wal").exists():
        shutil.copyfile(other / "metadata.db-wal", data / "metadata.db-wal")


def older(data: Path) -> None:
    kept = data.parent / "kept"
    kept.mkdir()
    for path in data.glob("metadata.db*"):
        shutil.copyfile(path, kept / path.name)
    catalog = load(data.parent / "flow.yaml")
    world = World(data, catalog, wall=1_700_000_100_000_000)
    for number in range(3, 6):
        world.ingest("d/events", [{"id": number}], None)
        world.wall += 10_000_000
        world.step()
    compact(world.store, catalog.collections["d/copies"], grace=0)
    world.store.close()
    remove(data)
    for path in kept.iterdir():
        shutil.copyfile(path, data / path.name)


LOSSES: list[tuple[Callable[[Path], None], str]] = [
    (remove, "metadata.db is missing, and the folder has collections/, state/, folder-id, commits"),
    (empty, "metadata.db is empty, and the folder has collections/"),
    (zero, "cannot be used"),
    (garble, "cannot be used: file is not a database"),
    (truncate, "cannot be used: database disk image is malformed"),
    (without_tables, "metadata.db has no tables, and the folder has collections/"),
    (of_other_tables, "is not a complete metadata database of flowctl"),
    (of_another_folder, "metadata.db is the metadata of another data folder"),
    (older, "metadata.db is older than the other files"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("lose", "reported"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_commands_refuse_a_folder_without_its_database_and_remove_nothing(
    tmp_path: Path, lose: Callable[[Path], None], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = filled(tmp_path)
    lose(data)
    before = stored_count(data)
    (tmp_path / "more.jsonl").write_text('{"id": 9}\n')

    for arguments in COMMANDS:
        status, out, err = in_this_process([*arguments, "--source", str(tmp_path / "flow.yaml"), "--data", str(data)])
        assert (status, out) == (1, ""), (arguments, out, err)
        assert reported in err, arguments
        assert "from a backup" in err or "flowctl restore" in err, arguments
    with pytest.raises(StorageError, match="metadata"):
        derive.open(data, source=tmp_path / "flow.yaml")

    assert stored_count(data) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("lose", "reported"), LOSSES[:-1], ids=[lose.__name__ for lose, _ in LOSSES[:-1]])
def test_folder_continues_after_its_database_is_restored(
    tmp_path: Path, lose: Callable[[Path], None], reported: str
) -> None:
    data = filled(tmp_path)
    (tmp_path / "backup").mkdir()
    for path in data.glob("metadata.db*"):
        shutil.copyfile(path, tmp_path / "backup" / path.name)
    lose(data)
    with pytest.raises(StorageError) as caught:
        Store(data)
    assert reported in str(caught.value)

    remove(data)
    for path in (tmp_path / "backup").iterdir():
        shutil.copyfile(path, data / path.name)

    with derive.open(data, source=tmp_path / "flow.yaml") as folder:
        assert folder.collection("d/copies").latest().to_arrow().column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize("trace", ["collections/a@/x.parquet", "state/a@/epoch", "folder-id", "sql.db", COMMITS])
def test_single_file_of_flowctl_shows_that_a_folder_is_not_new(tmp_path: Path, trace: str) -> None:
    path = tmp_path / "data" / trace
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1")

    with pytest.raises(StorageError, match="the folder has") as caught:
        Store(tmp_path / "data")

    assert trace.split("/", maxsplit=1)[0] in str(caught.value)
    assert not (tmp_path / "data/metadata.db").exists()
    assert path.read_bytes() == b"1"


def test_folder_without_files_of_flowctl_is_new(tmp_path: Path) -> None:
    for entry in ("lost+found", "collections", "state"):
        (tmp_path / "data" / entry).mkdir(parents=True)
    (tmp_path / "data/metadata.db").touch()

    store = Store(tmp_path / "data")

    assert store.collection("any") is None
    store.close()


def test_folder_of_an_older_version_gets_an_identifier(tmp_path: Path) -> None:
    data = filled(tmp_path)
    identifier = (data / "folder-id").read_text()
    with sqlite3.connect(data / "metadata.db") as db:
        db.execute("UPDATE folder SET id = '', commits = 0")
    db.close()
    (data / COMMITS).unlink()

    Store(data).close()
    with sqlite3.connect(data / "metadata.db") as db:
        assert db.execute("SELECT id FROM folder").fetchone() == (identifier,)
    db.close()
    (data / "folder-id").unlink()
    Store(data).close()

    assert (data / "folder-id").read_text() == identifier


def test_two_processes_that_create_a_folder_keep_their_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process has looked for the count of commits before the first one has created the folder."""
    first = Store(tmp_path)
    table = first.tables.create("t", (TableColumn("a", "bigint"),))
    capability = first.capabilities.acquire_write(table.id)
    early = [None]
    monkeypatch.setattr(opening, "read_commits", lambda root: early.pop() if early else read_commits(root))
    second = Store(tmp_path)
    assert not early
    assert second.capabilities.find(capability.id) == capability
    second.close()
    first.close()


def test_commit_count_is_never_ahead_of_the_database_after_a_kill(tmp_path: Path) -> None:
    data = filled(tmp_path)
    script = (
        "import sys; from pathlib import Path; from derive.storage.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for _ in range(3): store._metadata.wake(); store.acquire_task('t', 1)\n"
    )
    for point in ("metadata.committing", "metadata.committed", "none"):
        subprocess.run(
            [sys.executable, "-c", script, str(data)], env={"FLOW_FAILPOINT": point}, check=False, capture_output=True
        )
        Store(data).close()
        with sqlite3.connect(data / "metadata.db") as db:
            (commits,) = db.execute("SELECT commits FROM folder").fetchone()
        db.close()
        assert commits - 1 <= int((data / COMMITS).read_text()) <= commits
    assert commits > 3


def test_unknown_files_are_kept_without_the_commit_count(tmp_path: Path) -> None:
    data = filled(tmp_path)
    with sqlite3.connect(data / "metadata.db") as db:
        (writer,) = db.execute("SELECT id FROM writer").fetchone()
    db.close()
    left = data / f"collections/d/copies@/{writer}.9-0-0.parquet"

    def run() -> bool:
        left.write_bytes(b"torn")
        assert flowctl(tmp_path, "run", "--until-idle", "--local-documents", "9", "--data", "data")[0] == 0
        return left.exists()

    assert not run()  # the run that wrote it is known
    (data / COMMITS).unlink()
    assert run()
