"""`collections read` and `compact --since` from outside: followed, piped away, and asked for what is no longer known."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import PIPE

import orjson
import pytest
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.document.key import pack
from derive.protocol.collection import POSITION_PREFIX
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

CATALOG = """\
collections:
  a/b:
    schema:
      type: object
      properties: {id: {type: integer}, at: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
      required: [id]
      reduce: {strategy: merge}
    key: [/id]
"""
DERIVED = """\
  a/c:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: all, source: a/b, shuffle: any, lambda: SELECT $id;}]}
"""
DELETING = """\
collections:
  a/b:
    schema:
      type: object
      properties: {x: {type: object, properties: {id: {type: integer}}, required: [id]}, gone: {type: boolean}}
      required: [x]
      if: {properties: {gone: {const: true}}, required: [gone]}
      then: {reduce: {strategy: merge, delete: true}}
      else: {reduce: {strategy: merge}}
    key: [/x/id]
"""
READ = ["collections", "read", "--collection", "a/b"]


def ingest(folder: Path, *seconds: int) -> None:
    lines = [f'{{"id":{second % 2},"n":{second},"at":"1970-01-01T00:00:{second:02d}Z"}}\n' for second in seconds]
    status, _, err = flowctl(folder, "ingest", "--collection", "a/b", "--clock", "/at", text="".join(lines))
    assert status == 0, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    return tmp_path


class Follower:
    """A `collections read --follow` at work, whose lines are awaited."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = Flowctl(
            [*READ, "--follow", *arguments], cwd=folder, env=BARE, stdout=PIPE, stderr=PIPE, text=True
        )
        self._waiting = b""

    def line(self) -> str:
        assert self.process.stdout is not None
        while b"\n" not in self._waiting:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
            assert ready, "nothing was printed"
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            assert read, "it ended"
            self._waiting += read
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line.decode()

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, err


@contextmanager
def following(folder: Path, *arguments: str) -> Iterator[Follower]:
    follower = Follower(folder, *arguments)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.communicate()


def test_follow_prints_documents_when_final_and_can_be_resumed(folder: Path) -> None:
    with following(folder) as follower:  # before there is anything
        ingest(folder, 1, 2)
        lines = [follower.line() for _ in range(2)]
        ingest(folder, 3)
        lines.append(follower.line())
        status, err = follower.stop()

    assert [orjson.loads(line)["n"] for line in lines] == [1, 2, 3]
    assert status == 0
    assert err.splitlines()[0] == "2 documents before 1970-01-01T00:00:02.000001Z"
    assert err.splitlines()[-1] == "stopped; resume with --since 1970-01-01T00:00:03.000001Z"
    ingest(folder, 4)
    with following(folder, "--since", "1970-01-01T00:00:03.000001Z", "--progress") as follower:
        resumed = [follower.line() for _ in range(2)]
    assert orjson.loads(resumed[0])["n"] == 4
    assert resumed[1] == '{"_meta":{"upper":"1970-01-01T00:00:04.000001Z"}}'


def test_follow_of_reduced_documents_prints_each_after_a_change(folder: Path) -> None:
    """A follower that begins later, or resumes, gets the same contents."""
    with following(folder, "--reduce", "--progress") as early:  # before there is anything
        ingest(folder, 1, 2)
        first = [early.line() for _ in range(3)]
        ingest(folder, 3, 5)  # both of one key
        second = [early.line() for _ in range(2)]
        with following(folder, "--reduce") as late:
            whole = sorted(late.line() for _ in range(2))
            ingest(folder, 6)
            changed = late.line()
            status, err = late.stop()
        third = [early.line() for _ in range(2)]

    assert [orjson.loads(line).get("n") for line in first] == [2, 1, None]
    assert first[2] == '{"_meta":{"upper":"1970-01-01T00:00:02.000001Z"}}'
    assert second == [
        '{"id":1,"n":9,"at":"1970-01-01T00:00:05Z"}',
        '{"_meta":{"upper":"1970-01-01T00:00:05.000001Z"}}',
    ]
    assert whole == [
        '{"id":0,"n":2,"at":"1970-01-01T00:00:02Z"}',
        '{"id":1,"n":9,"at":"1970-01-01T00:00:05Z"}',
    ]
    assert changed == third[0] == '{"id":0,"n":8,"at":"1970-01-01T00:00:06Z"}'
    assert (status, err.splitlines()[-1]) == (0, "stopped; resume with --since 1970-01-01T00:00:06.000001Z")
    with following(folder, "--reduce", "--since", "1970-01-01T00:00:05.000001Z", "--key", "0") as resumed:
        assert resumed.line() == changed


def test_follow_of_reduced_documents_prints_deletions(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(DELETING)
    with following(tmp_path, "--reduce", "--limit", "3") as follower:
        lines: list[str] = []
        for text in ('{"x":{"id":1}}\n{"x":{"id":2}}\n', '{"x":{"id":1},"gone":true}\n'):
            assert flowctl(tmp_path, "ingest", "--collection", "a/b", text=text)[0] == 0
            lines += [follower.line() for _ in range(2 - len(lines) // 2)]
        assert follower.process.wait(timeout=PATIENCE_SECONDS) == 0

    assert lines == ['{"x":{"id":1}}', '{"x":{"id":2}}', '{"x":{"id":1},"_meta":{"op":"d"}}']


def test_follower_ends_without_an_error_if_its_output_is_closed(folder: Path) -> None:
    ingest(folder, 1)
    with following(folder) as follower:
        follower.line()
        assert follower.process.stdout is not None
        assert follower.process.stderr is not None
        follower.process.stdout.close()
        assert follower.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert follower.process.stderr.read() == "1 document before 1970-01-01T00:00:01.000001Z\n"


def test_reduced_read_of_few_documents_starts_no_spark(folder: Path) -> None:
    ingest(folder, 1, 2, 3)

    status, out, err = flowctl(folder, *READ, "--reduce")
    assert (status, err) == (0, "")
    assert out == '{"id":0,"n":2,"at":"1970-01-01T00:00:02Z"}\n{"id":1,"n":4,"at":"1970-01-01T00:00:03Z"}\n'
    assert not (folder / ".flow/logs/spark.log").exists()


def test_interrupted_reduced_reads_print_only_the_interruption(folder: Path) -> None:
    lines = [f'{{"id":{number},"n":0}}\n' for number in range(20_000)]
    assert flowctl(folder, "ingest", "--collection", "a/b", text="".join(lines))[0] == 0

    with Flowctl([*READ, "--reduce"], cwd=folder, env=BARE, stdout=PIPE, stderr=PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert orjson.loads(reader.stdout.readline())["id"] == 0  # it goes on once more is read of it
        reader.send_signal(signal.SIGINT)
        reader.stdout.read()
        assert reader.wait(timeout=PATIENCE_SECONDS) == 130
        assert reader.stderr.read().strip() == "stopped"


def test_dry_run_of_compact_prints_the_plan(folder: Path) -> None:
    ingest(folder, 1, 2, 3)
    ingest(folder, 4, 5)
    before = flowctl(folder, "collections", "list")

    status, out, _ = flowctl(folder, "compact", "--since", "1970-01-01T00:00:05Z", "--dry-run")
    assert (status, orjson.loads(out)) == (
        0,
        {
            "collection": "a/b",
            "segments": 2,
            "to rewrite": 2,
            "documents": 5,
            "to reduce": 4,
            "since": "1970-01-01T00:00:05.000000Z",
        },
    )
    assert flowctl(folder, "collections", "list") == before
    status, out, err = flowctl(folder, "compact", "--since", "2999-01-01T00:00:00Z")
    assert (status, out) == (2, "")
    assert err.startswith("error: --since 2999-01-01T00:00:00Z is in the future")


def test_compacted_history_is_an_error_that_names_since(folder: Path) -> None:
    ingest(folder, 1, 2, 3, 4, 5)

    status, out, _ = flowctl(folder, "compact", "--since", "1970-01-01T00:00:05Z")
    assert (status, orjson.loads(out)["since"]) == (0, "1970-01-01T00:00:05.000000Z")
    assert (orjson.loads(out)["documents before"], orjson.loads(out)["documents after"]) == (5, 3)
    for option in ("--as-of", "--since"):
        status, out, err = flowctl(folder, *READ, option, "1970-01-01T00:00:04Z")
        assert (status, out) == (1, "")
        assert err.startswith("error: 'a/b' is exact from 1970-01-01T00:00:05.000000Z on; its history at")
    status, _, err = flowctl(folder, *READ, "--as-of", "1970-01-01T00:00:06Z")
    assert (status, err.splitlines()[0]) == (
        1,
        "error: 'a/b' is known only before 1970-01-01T00:00:05.000001Z, and not yet at 1970-01-01T00:00:06.000000Z",
    )
    status, out, _ = flowctl(folder, *READ, "--as-of", "1970-01-01T00:00:05Z")
    assert [orjson.loads(line)["n"] for line in out.splitlines()] == [1 + 3, 2 + 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--follow", "--reduce", "--where", "n > 1"], "--follow --reduce prints every changed document, so it cannot be combined with --where"),
        (["--follow", "--as-of", "1970-01-01T00:00:06Z"], "--follow never ends, so it cannot be combined with --as-of"),
        (["--progress"], "--progress needs --follow"),
        (["--since", "noon"], "--since takes a time such as 2024-01-31T12:00:00Z, or a duration before now such as 1h, not noon"),
    ],
)  # fmt: skip
def test_contradictory_read_options_are_refused(folder: Path, arguments: list[str], message: str) -> None:
    status, _, err = flowctl(folder, *READ, *arguments)

    assert (status, err) == (2, f"error: {message}\n")


def test_list_reports_holders_of_capabilities(folder: Path) -> None:
    ingest(folder, 1, 2)
    store = Store(folder / ".flow")
    read = store.capabilities.keep("a/b", 2_500_000)
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    store.capabilities.acquire_write(table.id, purpose="tests")
    status, out, _ = flowctl(folder, "collections", "list", "-o", "json")
    read.close()
    store.close()

    rows = {row["collection"]: row for row in map(orjson.loads, out.splitlines())}
    process = f"{socket.gethostname()}:{os.getpid()}"
    assert status == 0
    assert rows["a/b"]["readers"] == [f"{process} from 1970-01-01T00:00:02.500000Z on"]
    assert rows["sql/public/t"]["id"] == table.id
    assert rows["sql/public/t"]["key"] == "/n"
    assert rows["sql/public/t"]["writers"][0].startswith(f"tests ({process}) from 20")


def test_list_shows_internal_tables_only_on_request(folder: Path) -> None:
    ingest(folder, 1)
    with closing(Store(folder / ".flow")) as store:
        store.tables.create(f"{POSITION_PREFIX}1", [TableColumn("n", "bigint")])
    listed = []
    for options in ([], ["--all"]):
        status, out, err = flowctl(folder, "collections", "list", "-o", "json", *options)
        assert status == 0, err
        listed.append({row["collection"] for row in map(orjson.loads, out.splitlines())})

    assert listed[1] - listed[0] == {f"{POSITION_PREFIX}1"}
    assert listed[0] <= listed[1]


def test_tables_are_compacted_as_collections_are(folder: Path) -> None:
    store = Store(folder / ".flow")
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    for diff in (1, -1, 1):
        store.tables.append(store.timeline.assign(1), {table.id: [('{"n":1}', pack([1]), diff)]})
        store.tables.flush()
    store.close()
    status, out, err = flowctl(folder, "compact", "--collection", "sql/public/t", "-o", "json")

    assert status == 0, err
    assert (orjson.loads(out)["segments before"], orjson.loads(out)["segments after"]) == (3, 1)


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (READ, "'a/b' has no documents; load some: flowctl ingest --collection a/b FILE\n"),
        ([*READ[:3], "a/c", "--reduce"], "'a/c' has no documents; derive them: flowctl run --until-idle\n"),
        (["run", "--until-idle"], "no source has documents; load some: flowctl ingest --collection a/b FILE\n"),
    ],
)
def test_commands_without_documents_print_a_note(command: list[str], note: str, folder: Path) -> None:
    (folder / "flow.yaml").write_text(f"{CATALOG}{DERIVED}")
    assert flowctl(folder, *command) == (0, "", note)
    assert flowctl(folder, *command, "-q") == (0, "", "")


def test_read_before_the_first_document_prints_a_note(folder: Path) -> None:
    ingest(folder, 5, 6)
    said = "no documents in 'a/b' as of 1970-01-01T00:00:04.000000Z; its first document is of 1970-01-01T00:00:05.0"
    for more in ([], ["--reduce"], ["--key", "1"]):
        status, out, err = flowctl(folder, *READ, "--as-of", "1970-01-01T00:00:04Z", *more)
        assert (status, out, said in err) == (0, "", True), err
    assert flowctl(folder, *READ, "--key", "7") == (0, "", "")
