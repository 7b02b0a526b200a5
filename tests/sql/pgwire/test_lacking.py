"""Clients are told what the machine lacks by the SQLSTATEs that PostgreSQL has for that."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from forked_flowctl import Flowctl

from derive.errors import BusyError, DiskFullError, FlowError, StorageError, UnansweredError
from derive.sql.pgwire.work import sql_error_of
from derive.storage.blobs import translated


def system(number: int) -> Callable[[], OSError]:
    return lambda: OSError(number, "said by the system", "/file")


CAUSES: dict[str, tuple[Callable[[], BaseException], str]] = {
    "ENOSPC": (system(errno.ENOSPC), "53100"),
    "EDQUOT": (system(errno.EDQUOT), "53100"),
    "ENOMEM": (system(errno.ENOMEM), "53200"),
    "EMFILE": (system(errno.EMFILE), "53000"),
    "ENFILE": (system(errno.ENFILE), "53000"),
    "EIO": (system(errno.EIO), "58030"),
    "full": (lambda: apsw.FullError("database or disk is full"), "53100"),
    "no memory": (lambda: apsw.NoMemError("out of memory"), "53200"),
    "memory": (MemoryError, "53200"),
    "io": (lambda: apsw.IOError("disk I/O error"), "58030"),
}


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("way", ["raw", "translated", "twice"])
def test_lacking_resources_have_an_sqlstate_and_a_hint(name: str, way: str) -> None:
    cause, sqlstate = CAUSES[name]
    defects: list[BaseException] = []
    error: BaseException = cause()
    if way != "raw":
        if isinstance(error, MemoryError | apsw.NoMemError):
            pytest.skip("these are not translated on their way")
        with pytest.raises(StorageError) as caught, translated("/data"):
            raise error
        error = caught.value
    if way == "twice":
        try:
            raise FlowError("what was to be done is not done") from error
        except FlowError as outer:
            error = outer
    reported = sql_error_of(error, defects.append)
    assert reported.sqlstate == sqlstate
    assert reported.hint
    assert defects == []


@pytest.mark.parametrize(
    ("error", "sqlstate"),
    [
        (DiskFullError("x"), "53100"),
        (BusyError("x"), "55P03"),
        (UnansweredError("x"), "57P03"),
        (StorageError("x"), "58000"),
        (OSError(errno.EPERM, "x"), "XX000"),
        (ValueError("x"), "XX000"),
    ],
)
def test_other_errors_keep_their_sqlstate(error: BaseException, sqlstate: str) -> None:
    defects: list[BaseException] = []
    assert sql_error_of(error, defects.append).sqlstate == sqlstate
    assert bool(defects) == (sqlstate == "XX000")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=64m,mode=777", "tmpfs", str(folder)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("disks are mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


WRITES = [
    "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 2000) g",
    "UPDATE t SET s = s || repeat('y', 400000)",
    "CREATE TABLE many AS SELECT repeat('x', 400000) || a AS s FROM t",
    "ALTER TABLE t ADD COLUMN b text DEFAULT repeat('z', 400000)",
    "BEGIN; INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 2000) g; COMMIT",
    "BEGIN; CREATE TABLE n AS SELECT repeat('x', 400000) || a AS s FROM t; COMMIT",
    "COPY",
]


def test_statements_report_a_full_disk(disk: Path) -> None:
    """Each is told 53100 and has changed nothing, whatever writes; all go on once there is space again."""
    (disk / "flow.yaml").write_text("collections: {}")
    process = Flowctl(["sql", "serve", "--listen", "127.0.0.1:0"], cwd=disk, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    port = int(process.stdout.readline().rpartition(":")[2])
    try:
        with psycopg.connect(f"host=127.0.0.1 port={port} user=flow", autocommit=True) as client:
            client.execute("CREATE TABLE t (a bigint, s text)")
            client.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 50) g")
            before = client.execute("SELECT count(*), sum(length(s)) FROM t").fetchall()
            _fill(disk)
            seen = {text: _sqlstate(client, text) for text in WRITES}
            assert seen == dict.fromkeys(WRITES, "53100")
            (disk / "ballast").unlink()
            assert client.execute("SELECT count(*), sum(length(s)) FROM t").fetchall() == before
            assert client.execute("SELECT relname FROM pg_class WHERE relname IN ('many', 'n')").fetchall() == []
            assert [_sqlstate(client, text) for text in (WRITES[0], WRITES[4], "COPY")] == [None, None, None]
            assert client.execute("SELECT count(*) FROM t").fetchall() == [(50 + 3 * 2000,)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12):
            try:
                while ballast.write(b"x" * size) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (it has to come)


def _sqlstate(client: psycopg.Connection[Any], text: str) -> str | None:
    try:
        if text == "COPY":
            with client.cursor().copy("COPY t FROM STDIN") as copy:
                for number in range(2000):
                    copy.write_row((number, "x" * 1000))
        else:
            client.execute(text.encode())
    except psycopg.Error as error:
        if client.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            client.execute("ROLLBACK")
        return error.sqlstate
    return None
