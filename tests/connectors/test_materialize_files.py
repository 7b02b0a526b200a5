"""Files beyond what conformance asks: what is in them, crashes between any two steps, and what the disk refuses."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import duckdb
import pytest
from files_writer import write
from typing_extensions import override

from connectors.kit import (
    Application,
    Binding,
    ConstraintType,
    Field,
    Materialization,
    Opening,
    ProposedBinding,
    SourceCollection,
    StoredRows,
    Validation,
)
from connectors.materialize_files import FilesConnector
from connectors.materialize_files.connector import FilesSession
from connectors.materialize_files.manifest import Manifest, Shard
from connectors.materialize_files.parquet import ParquetSink
from derive.errors import DeniedError, EndpointError, FencedError

FIELDS = (
    Field("id", "/id", ("integer",), must_exist=True, is_key=True),
    Field("amount", "/amount", ("integer", "number")),
    Field("flag", "/flag", ("boolean", "null")),
    Field("mixed", "/mixed", ("integer", "object", "string")),
    Field("note", "/note", ("null", "string")),
    Field("flow_document", "", ("object",), must_exist=True),
)
COLLECTION = SourceCollection("a/b", ("/id",), {field.name: field for field in FIELDS})
ROWS = StoredRows(
    key_columns=[[1, 2, 3]],
    value_columns=[[1, 2.5, None], [True, None, False], [1, b'{"a":1}', "x"], ['say "hi"\r\n, you', "", None]],
    documents=[b'{"id":1}', b'{"id":2,\n"b":1}', b'{"id":3}'],
    exists=[False] * 3,
    deleted=[False, False, True],
)


def materialization(root: Path, kind: str = "parquet", document: str | None = None) -> Materialization:
    binding = Binding({"path": "b", "format": kind}, ("b",), COLLECTION, FIELDS[:1], FIELDS[1:5], document, {}, True)
    return Materialization("a/m", {"path": str(root)}, (binding,))


def opened(root: Path, kind: str = "parquet", document: str | None = None, end: int = 9) -> FilesSession:
    return FilesConnector().open(Opening(materialization(root, kind, document), "v1", 0, end))


def transact(session: FilesSession, checkpoint: bytes, rows: StoredRows = ROWS) -> None:
    session.prepare(checkpoint)
    session.store(0, rows)
    session.commit()


def one(identity: int) -> StoredRows:
    """One row of a key."""
    return StoredRows([[identity]], [[None]] * 4, [b"{}"], [False], [False])


def outputs(root: Path, kind: str = "parquet") -> list[Path]:
    return sorted((root / "b").glob(f"*.{kind}"))


def query(sql: str) -> list[Any]:
    """Rows, as somebody reads them who knows nothing of the connector."""
    relation = duckdb.sql(sql)
    assert relation is not None
    return relation.fetchall()


def keys(root: Path) -> list[int]:
    """Keys of all rows in files that readers see, sorted."""
    rows = [query(f"SELECT id FROM '{path}'") for path in outputs(root)]
    return sorted(key for some in rows for (key,) in some)


def test_columns_of_parquet_are_typed(tmp_path: Path) -> None:
    transact(opened(tmp_path, document="flow_document"), b"1")

    (path,) = outputs(tmp_path)
    described = query(f"DESCRIBE SELECT * FROM '{path}'")
    assert [(name, kind) for name, kind, *_ in described] == [
        ("id", "BIGINT"),
        ("amount", "DOUBLE"),
        ("flag", "BOOLEAN"),
        ("mixed", "VARCHAR"),
        ("note", "VARCHAR"),
        ("flow_document", "VARCHAR"),
        ("flow_deleted", "BOOLEAN"),
    ]
    assert query(f"SELECT * FROM '{path}' ORDER BY id") == [
        (1, 1.0, True, "1", 'say "hi"\r\n, you', '{"id":1}', False),
        (2, 2.5, None, '{"a":1}', "", '{"id":2,\n"b":1}', False),
        (3, None, False, '"x"', None, '{"id":3}', True),
    ]


def test_csv_distinguishes_absent_values_from_empty_texts(tmp_path: Path) -> None:
    transact(opened(tmp_path, "csv"), b"1")

    (path,) = outputs(tmp_path, "csv")
    assert path.read_bytes() == (
        b'"id","amount","flag","mixed","note","flow_deleted"\r\n'
        b'1,1,true,1,"say ""hi""\r\n, you",false\r\n'
        b'2,2.5,,"{""a"":1}","",false\r\n'
        b'3,,false,"x",,true\r\n'
    )


def test_json_lines_are_whole_documents(tmp_path: Path) -> None:
    transact(opened(tmp_path, "jsonl", "flow_document"), b"1")

    (path,) = outputs(tmp_path, "jsonl")
    assert path.read_bytes() == b'{"id":1}\n{"id":2, "b":1}\n{"id":3}\n'


def test_files_sort_as_transactions_were_committed(tmp_path: Path) -> None:
    first = opened(tmp_path)
    transact(first, b"1", one(1))
    transact(first, b"2", one(2))
    second = opened(tmp_path, end=5)
    transact(second, b"3", one(3))

    assert [query(f"SELECT id FROM '{path}'") for path in outputs(tmp_path)] == [[(1,)], [(2,)], [(3,)]]
    assert [path.name for path in outputs(tmp_path)] == [
        "000000000001-000000001-00000000-00000009-974b5d8d.parquet",
        "000000000001-000000002-00000000-00000009-974b5d8d.parquet",
        "000000000004-000000001-00000000-00000005-974b5d8d.parquet",
    ]


def test_large_transactions_are_one_file_of_several_groups(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.prepare(b"1")
    many = 30_000
    for begin in range(0, 4 * many, many):
        rows = StoredRows(
            [range(begin, begin + many)], [[None] * many] * 4, [b"{}"] * many, [False] * many, [False] * many
        )
        session.store(0, rows)
    session.commit()

    (path,) = outputs(tmp_path)
    assert query(f"SELECT count(*), max(id) FROM '{path}'") == [(4 * many, 4 * many - 1)]
    groups = f"SELECT DISTINCT row_group_id, row_group_num_rows FROM parquet_metadata('{path}') ORDER BY 1"
    assert query(groups) == [(0, 2 * many), (1, 2 * many)]


def test_an_integer_beyond_64_bits_is_reported(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.prepare(b"1")

    with pytest.raises(EndpointError) as caught:
        session.store(0, one(2**64))

    assert caught.value.message == f"column 'id' of Parquet, key [{2**64}]: {2**64} has more than 64 bits"
    assert caught.value.hint == "the formats jsonl and csv take integers of any size; or leave the field out"


@pytest.mark.parametrize(("value", "is_stored"), [(10**19, True), (2**53 + 1, False), (10**400, False), (-7, True)])
def test_integer_in_a_column_of_doubles_is_exact_or_refused(value: int, is_stored: bool, tmp_path: Path) -> None:
    fields = {"id": Field("id", "/id", ("integer",), True, is_key=True), "x": Field("x", "/x", ("number",))}
    collection = SourceCollection("a/b", ("/id",), fields, "{}")
    resource = {"path": "p", "format": "parquet"}
    binding = Binding(resource, ("p",), collection, (fields["id"],), (fields["x"],), None)
    path = tmp_path / "x.parquet"
    sink = ParquetSink(path, binding)
    rows = StoredRows([[7]], [[value]], [b"{}"], [False], [False])

    if not is_stored:
        with pytest.raises(EndpointError, match=r"column 'x' of Parquet, key \[7\]: .* no double is equal to"):
            sink.add(rows)
        sink.close()
        return
    sink.add(rows)
    sink.close()
    assert query(f"SELECT x FROM '{path}'") == [(float(value),)]


class CrashError(Exception):
    """A crash: whoever raises it does nothing more."""


class Unpublished(FilesSession):
    """Crashes behind the commit, before any file is renamed."""

    crashes = False

    @override
    def _publish(self, shard: Shard) -> None:
        if self.crashes:
            raise CrashError
        super()._publish(shard)


class Unlinked(FilesSession):
    """Crashes before the commit, with all files staged."""

    @override
    def _sync(self, path: Path) -> None:
        super()._sync(path)
        raise CrashError


def crashed(root: Path, make: Callable[[Opening, Path], FilesSession]) -> FilesSession:
    session = make(Opening(materialization(root), "v1", 0, 9), root)
    if isinstance(session, Unpublished):
        session.crashes = True
    with pytest.raises(CrashError):
        transact(session, b"2", one(2))
    return session


@pytest.mark.parametrize("end", [9, 5, 100])
def test_next_session_completes_a_crash_after_the_commit(tmp_path: Path, end: int) -> None:
    transact(opened(tmp_path), b"1", one(1))
    crashed(tmp_path, Unpublished)
    assert keys(tmp_path) == [1]

    session = opened(tmp_path, end=end)

    assert session.checkpoint == (b"" if end == 100 else b"2")
    assert keys(tmp_path) == [1, 2]
    assert opened(tmp_path).checkpoint == b"2"
    assert keys(tmp_path) == [1, 2]


def test_a_crash_before_the_commit_leaves_nothing(tmp_path: Path) -> None:
    transact(opened(tmp_path), b"1", one(1))
    crashed(tmp_path, Unlinked)
    staged = tmp_path / ".flow" / "a%2Fm" / "staged"
    assert len(list(staged.iterdir())) == 1

    assert opened(tmp_path).checkpoint == b"1"

    assert keys(tmp_path) == [1]
    assert list(staged.iterdir()) == []


def test_stopped_session_that_committed_continues(tmp_path: Path) -> None:
    sleeper = crashed(tmp_path, Unpublished)
    opened(tmp_path)

    # It goes on where it was: what it has committed was published, and there is nothing to rename.
    assert isinstance(sleeper, Unpublished)
    sleeper.crashes = False
    (own,) = [shard for shard in sleeper._manifest.read().shards if shard.transaction == 0]
    sleeper._publish(own)

    assert keys(tmp_path) == [2]
    with pytest.raises(FencedError, match="'a/m' for keys of 00000000-00000009"):
        transact(sleeper, b"3", one(3))


def test_later_sessions_keep_staged_files_of_other_key_ranges(tmp_path: Path) -> None:
    left = opened(tmp_path, end=5)
    left.prepare(b"1")
    left.store(0, one(1))

    FilesConnector().open(Opening(materialization(tmp_path), "v1", 6, 9))

    left.commit()
    assert keys(tmp_path) == [1]


def test_a_closed_session_leaves_nothing_staged(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.prepare(b"1")
    session.store(0, ROWS)

    session.close()

    assert list((tmp_path / ".flow" / "a%2Fm" / "staged").iterdir()) == []


def validated(kind: str, *fields: Field) -> dict[str, ConstraintType]:
    collection = SourceCollection("a/b", ("/id",), {field.name: field for field in (*FIELDS, *fields)})
    request = Validation("a/m", {"path": "/x"}, (ProposedBinding({"path": "b", "format": kind}, collection),))
    (binding,) = FilesConnector().validate(request)
    return {name: constraint.type for name, constraint in binding.constraints.items()}


def test_fields_are_columns_or_part_of_documents() -> None:
    assert validated("parquet", Field("flow_deleted", "/flow_deleted", ("boolean",))) == {
        "id": ConstraintType.LOCATION_REQUIRED,
        "amount": ConstraintType.LOCATION_RECOMMENDED,
        "flag": ConstraintType.LOCATION_RECOMMENDED,
        "mixed": ConstraintType.FIELD_OPTIONAL,
        "note": ConstraintType.LOCATION_RECOMMENDED,
        "flow_document": ConstraintType.FIELD_OPTIONAL,
        "flow_deleted": ConstraintType.FIELD_FORBIDDEN,
    }
    assert validated("jsonl")["flow_document"] is ConstraintType.FIELD_REQUIRED
    assert validated("jsonl")["amount"] is ConstraintType.FIELD_FORBIDDEN


def applied(root: Path) -> str:
    return FilesConnector().apply(Application(materialization(root), "v1"))


def test_endpoint_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EndpointError, match="cannot create folders in .*/file: File exists"):
        applied(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is refused to root")
def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(DeniedError):
        applied(tmp_path / "out")


def test_resource_path_cannot_leave_the_folder() -> None:
    from jsonschema import Draft202012Validator

    schema: Any = Draft202012Validator(FilesConnector().spec().resource_schema)

    for path, is_valid in [
        ("b", True),
        ("a/b-c_d.e", True),
        ("ä/1", True),
        ("", False),
        ("/b", False),
        ("a//b", False),
        ("a/", False),
        ("..", False),
        ("a/../b", False),
        (".flow", False),
        ("a\\b", False),
    ]:
        assert schema.is_valid({"path": path, "format": "csv"}) is is_valid, path


# Writers that are killed, or sleep while others take over, at random moments: every row comes, and none twice.


CONTEXT = multiprocessing.get_context("forkserver")
LAST = 10**9


def numbers(folder: Path) -> list[int]:
    """All rows of a folder, in the order of its files."""
    return [json.loads(line)["id"] for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def committed(root: Path) -> int:
    (shard,) = Manifest(root / ".flow" / "a%2Fm", "a/m").read().shards
    return int(bytes.fromhex(shard.checkpoint) or b"0")


def send(writer: ForkServerProcess, number: signal.Signals) -> None:
    """Send a signal to a writer, if it is still there."""
    assert writer.pid is not None
    with suppress(ProcessLookupError):
        os.kill(writer.pid, number)


def torment(root: Path, rounds: int) -> None:
    """Have writers end or sleep, one after the other; a sleeper wakes up beside the next one."""
    before: ForkServerProcess | None = None
    for _ in range(rounds):
        writer = CONTEXT.Process(target=write, args=(root, LAST))
        writer.start()
        time.sleep(random.uniform(0.01, 0.2))
        if before:
            send(before, signal.SIGCONT)
            time.sleep(random.uniform(0, 0.05))
            send(before, signal.SIGKILL)
            before.join()
        send(writer, random.choice([signal.SIGKILL, signal.SIGSTOP]))
        before = writer
    assert before is not None
    send(before, signal.SIGKILL)
    before.join()


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.torture)])
def test_killed_and_stopped_writers_lose_nothing(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 (shown where it fails)
    random.seed(seed)
    write(tmp_path, 0)

    torment(tmp_path, rounds)
    done = committed(tmp_path)
    write(tmp_path, done + 30)

    assert done > 0
    assert numbers(tmp_path / "left") == numbers(tmp_path / "right") == list(range(committed(tmp_path)))
    assert committed(tmp_path) >= done + 30
    assert list((tmp_path / ".flow" / "a%2Fm" / "staged").iterdir()) == []
