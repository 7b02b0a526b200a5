"""Loads with identifiers: `flowctl ingest --load-id` and `flowctl ingestions`."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.catalog import load
from derive.errors import HeldError, OwnedError, StorageError
from derive.storage.capability.table import replace_inputs, view_holder
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import Line
from derive.storage.metadata.ingestions import LoadedFile, RepeatedLoadError
from derive.storage.metadata.opening import is_data_folder
from derive.storage.metadata.undo import ReadLoadError
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

CATALOG = """\
collections:
  l/orders:
    schema: {type: object, properties: {id: {type: integer}, at: {type: string}}, required: [id]}
    key: [/id]
  l/doubled:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: double, source: l/orders, shuffle: any, lambda: SELECT 2 * $id AS id;}]
"""
READER, READ = ("l/doubled:", "l/again:"), ("l/orders", "l/doubled")
"""Replacements of names that make a reader of the derivation out of the derivation."""
ONE_AND_TWO = '{"id":1}\n{"id":2}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    (tmp_path / "a.jsonl").write_text(ONE_AND_TWO)
    (tmp_path / "b.jsonl").write_text('{"id":3}\n')
    return tmp_path


def ingest(folder: Path, *arguments: str, text: str = "", status: int = 0, failpoint: str = "") -> str:
    """Ingest, expect an exit status, and return standard error."""
    environment = {**BARE, "FLOW_FAILPOINT": failpoint}
    code, _, err = flowctl(folder, "ingest", "--collection", "l/orders", *arguments, text=text, env=environment)
    assert code == status, err
    return err


def ids(folder: Path, collection: str = "l/orders") -> Counter[int]:
    """Return how often each id is in a collection."""
    code, out, err = flowctl(folder, "collections", "read", "--collection", collection)
    assert code == 0, err
    return Counter(json.loads(line)["id"] for line in out.splitlines())


def listed(folder: Path) -> list[dict[str, Any]]:
    code, out, err = flowctl(folder, "ingestions", "list", "-o", "json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_list_of_loads_needs_a_catalog_or_a_data_folder(folder: Path, tmp_path: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    (tmp_path / "elsewhere").mkdir()
    code, out, err = flowctl(tmp_path / "elsewhere", "ingestions", "list")
    assert (code, out) == (1, "")
    assert "name an existing one: --source FILE" in err
    assert flowctl(tmp_path / "elsewhere", "ingestions", "list", "--data", str(folder / ".flow"))[0] == 0


def test_load_id_ingests_a_repeated_load_once(folder: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    assert "load 'may' was ingested into 'l/orders' already" in ingest(folder, "--load-id", "may", "a.jsonl")
    assert "nothing more was ingested" in ingest(folder, "--load-id", "may", text=ONE_AND_TWO)
    assert ids(folder) == {1: 1, 2: 1}
    ingest(folder, "--load-id", "june", "a.jsonl")
    assert ids(folder) == {1: 2, 2: 2}
    assert [(row["load_id"], row["file"], row["documents"], row["state"]) for row in listed(folder)] == [
        ("may", "a.jsonl", 2, "loaded"),
        ("june", "a.jsonl", 2, "loaded"),
    ]


def test_ingest_prints_each_file_as_json(folder: Path) -> None:
    def printed(*arguments: str) -> list[dict[str, Any]]:
        code, out, err = flowctl(folder, "ingest", "--collection", "l/orders", "-o", "json", *arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    loaded = {"collection": "l/orders", "load_id": None, "repeated": False}
    assert printed("a.jsonl", "b.jsonl") == [
        {**loaded, "file": "a.jsonl", "documents": 2},
        {**loaded, "file": "b.jsonl", "documents": 1},
    ]
    may = {**loaded, "load_id": "may", "file": "b.jsonl"}
    assert printed("--load-id", "may", "b.jsonl") == [{**may, "documents": 1}]
    assert printed("--load-id", "may", "b.jsonl") == [{**may, "documents": 0, "repeated": True}]


def test_load_id_refuses_other_content(folder: Path) -> None:
    ingest(folder, "--load-id", "may", text=ONE_AND_TWO)
    error = ingest(folder, "--load-id", "may", "b.jsonl", status=1)
    assert "b.jsonl is not what load 'may' of 'l/orders' has ingested" in error
    assert "from standard input, 2 documents" in error
    assert "standard input is not what" in ingest(folder, "--load-id", "may", text='{"id":3}\n', status=1)
    assert ids(folder) == {1: 1, 2: 1}


def test_load_id_names_one_file(folder: Path) -> None:
    assert "names the load of one file" in ingest(folder, "--load-id", "may", "a.jsonl", "b.jsonl", status=2)
    assert "not empty" in ingest(folder, "--load-id", "", "a.jsonl", status=2)
    assert not (folder / ".flow").exists()


def test_load_id_of_an_empty_input_is_recorded(folder: Path) -> None:
    ingest(folder, "--load-id", "none")
    assert "already" in ingest(folder, "--load-id", "none")
    assert [row["documents"] for row in listed(folder)] == [0]


def test_load_id_of_a_refused_file_can_be_used_again(folder: Path) -> None:
    ingest(folder, "--load-id", "may", text='{"id":"x"}\n', status=1)
    assert listed(folder) == []
    ingest(folder, "--load-id", "may", "a.jsonl")
    assert ids(folder) == {1: 1, 2: 1}


def test_ingest_warns_of_content_that_was_ingested_before(folder: Path) -> None:
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(ONE_AND_TWO.encode()))
    assert "before" not in ingest(folder, "a.jsonl", "b.jsonl", "packed.jsonl.gz")
    warning = ingest(folder, "a.jsonl")
    assert "the content of a.jsonl was ingested into 'l/orders' once before, the last time at 20" in warning
    assert "from a.jsonl, 2 documents; it was ingested again. This load has no id, so it cannot be undone" in warning
    assert "2 times before" in ingest(folder, "a.jsonl")
    assert "before" not in ingest(folder, text=ONE_AND_TWO)
    assert ids(folder) == {1: 5, 2: 5, 3: 1}
    (folder / "flow.yaml").write_text(CATALOG.replace("    key: [/id]\n  l/doubled", "    key: [/at]\n  l/doubled"))
    refused = ingest(folder, "a.jsonl", status=1)
    assert "was stored with key" in refused
    assert "ingested again" not in refused


def test_ingest_does_not_warn_of_an_empty_or_refused_file(folder: Path) -> None:
    (folder / "empty.jsonl").write_text("")
    ingest(folder, "empty.jsonl", "a.jsonl")
    (folder / "flow.yaml").write_text(CATALOG.replace("id: {type: integer}", "id: {type: integer, minimum: 2}"))
    assert "ingested again" not in ingest(folder, "empty.jsonl")
    assert "ingested again" not in ingest(folder, "a.jsonl", status=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["metadata.committing", "metadata.committed"])
def test_load_id_ingests_once_after_a_kill_at_any_failpoint(folder: Path, point: str) -> None:
    """Exactly once: a load that was killed at any of its commits and then repeated is in the collection once."""
    ingest(folder, "b.jsonl")
    for number in itertools.count(1):
        load_id = f"load {number}"
        (folder / "new.jsonl").write_text(f'{{"id":{100 + number}}}\n')
        code, _, err = flowctl(
            folder,
            *("ingest", "--collection", "l/orders", "--load-id", load_id, "new.jsonl"),
            env={**BARE, "FLOW_FAILPOINT": f"{point}:{number}"},
        )
        assert code in (0, -9), err
        ingest(folder, "--load-id", load_id, "new.jsonl")
        if code == 0:
            break
    assert number > 1
    assert ids(folder) == {3: 1} | {100 + n: 1 for n in range(1, number + 1)}


def overtaken(folder: Path, clock: str | None, digest: str) -> None:
    """Ingest a load in whose midst another store ingests the load with the same identifier."""
    spec = load(folder / "flow.yaml").collections["l/orders"]
    lines: list[Line] = [(1, {"id": 1, "at": "2020-01-01T00:00:00Z"})]
    first, second = Store(folder / ".flow", durable=False), Store(folder / ".flow", durable=False)

    def slowly() -> Iterator[Line]:
        Ingestion(first, spec, clock=clock).load("first", lines, LoadedFile("first", "may", lambda: "same"))
        first.close()
        yield from lines

    with closing(second):
        try:
            Ingestion(second, spec, clock=clock).load("second", slowly(), LoadedFile("second", "may", lambda: digest))
        finally:
            second.seal_now(["l/orders"])


@pytest.mark.parametrize("clock", [None, "/at"])
def test_load_id_ingests_once_if_another_process_is_faster(folder: Path, clock: str | None) -> None:
    with pytest.raises(RepeatedLoadError):
        overtaken(folder, clock, "same")
    assert ids(folder) == {1: 1}
    assert [row["file"] for row in listed(folder)] == ["first"]


def test_load_id_refuses_other_content_if_another_process_is_faster(folder: Path) -> None:
    with pytest.raises(StorageError, match="second is not what load 'may' of 'l/orders' has ingested"):
        overtaken(folder, None, "other")
    assert ids(folder) == {1: 1}


def undo(folder: Path, load_id: str, *arguments: str, status: int = 0, failpoint: str = "") -> str:
    """Undo a load, expect an exit status, and return standard error."""
    undone = ("ingestions", "undo", "--collection", "l/orders", "--load-id", load_id)
    code, _, err = flowctl(folder, *undone, *arguments, env={**BARE, "FLOW_FAILPOINT": failpoint})
    assert code == status, err
    return err


def run(folder: Path) -> None:
    code, _, err = flowctl(folder, "run", "--until-idle", "--local-documents", "1000")
    assert code == 0, err


def test_undo_removes_a_load_that_nothing_has_read(folder: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    run(folder)
    ingest(folder, "--load-id", "june", "b.jsonl")
    undo(folder, "june")
    undo(folder, "june")
    assert ids(folder) == {1: 1, 2: 1}
    assert [row["state"][:6] for row in listed(folder)] == ["loaded", "undone"]
    ingest(folder, "--load-id", "june", text='{"id":4}\n')
    run(folder)
    assert ids(folder, "l/doubled") == {2: 1, 4: 1, 8: 1}
    assert "did you mean 'june'?" in undo(folder, "jun", status=2)


def test_undo_refuses_a_load_that_a_task_has_read(folder: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    run(folder)
    error = undo(folder, "may", status=1)
    assert "'l/doubled' has read up to 20" in error
    assert "--reset-readers" in error
    assert ids(folder) == {1: 1, 2: 1}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["reset.committing", "reset.committed"])
def test_undo_resets_readers_in_one_commit_under_kills(folder: Path, point: str) -> None:
    """Exactly once: after a kill the load and what followed from it are there, or neither is."""
    ingest(folder, "--load-id", "may", "a.jsonl")
    ingest(folder, "--load-id", "june", "b.jsonl")
    run(folder)
    undo(folder, "may", "--reset-readers", status=-9, failpoint=point)
    left = ids(folder)
    assert left in ({1: 1, 2: 1, 3: 1}, {3: 1})
    run(folder)
    assert ids(folder, "l/doubled") == {2 * number: 1 for number in left}
    undo(folder, "may", "--reset-readers")
    run(folder)
    assert ids(folder) == {3: 1}
    assert ids(folder, "l/doubled") == {6: 1}


def test_undo_refuses_a_load_with_other_readers_or_after_compaction(folder: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    ingest(folder, "--load-id", "june", "b.jsonl")
    with closing(Store(folder / ".flow", durable=False)) as store:
        reader = store.capabilities.keep("l/orders")
        with pytest.raises(ReadLoadError, match="have readers"):
            store.reset([], undone=("l/orders", "june"))
        reader.close()
        view = store.tables.create("sql/public/v", [TableColumn("a", "integer", nullable=False)])
        with store._metadata.transaction() as db:
            replace_inputs(db, view_holder(view.id), ["l/orders"], 0)
        with pytest.raises(ReadLoadError, match="have readers: the view 'sql/public/v' of SQL"):
            store.reset([], undone=("l/orders", "june"))
        with pytest.raises(HeldError, match="'l/orders' has readers") as held:
            store.drop("l/orders")
        assert held.value.hint == "end them first, or add --force; views and indexes of SQL must be dropped"
        with pytest.raises(HeldError, match="'l/orders' has readers: the view 'sql/public/v' of SQL"):
            store.drop("l/orders", force=True)
    assert flowctl(folder, "compact")[0] == 0
    assert "compaction has merged its documents" in undo(folder, "june", status=1)
    assert ids(folder) == {1: 1, 2: 1, 3: 1}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_loads_are_ingested_exactly_once_under_kills_and_undos(folder: Path, seed: int) -> None:
    """Exactly once: after any order of loads, repeats, kills and undos, a load is in the collection once or not."""
    rolls = random.Random(seed)
    points = ["", "metadata.committing", "metadata.committed"]
    present: dict[int, bool | None] = {}
    for _ in range(9):
        number = rolls.randrange(3)
        failpoint = f"{point}:{rolls.randrange(1, 8)}" if (point := rolls.choice(points)) else ""
        is_undo = present.get(number, False) is not False and rolls.random() < 0.4
        if is_undo:
            order = ["ingestions", "undo", "--collection", "l/orders", "--load-id", str(number)]
        else:
            order = ["ingest", "--collection", "l/orders", "--load-id", str(number)]
        text = f'{{"id":{number}}}\n'
        code, _, err = flowctl(folder, *order, text=text, env={**BARE, "FLOW_FAILPOINT": failpoint})
        assert code in (0, -9) or "there is no load" in err, err
        present[number] = None if code == -9 else code == 0 and not is_undo
    found = ids(folder)
    assert set(found.values()) <= {1}
    assert all(found[number] == is_there for number, is_there in present.items() if is_there is not None)
    loaded = {int(row["load_id"]) for row in listed(folder) if row["state"] == "loaded"}
    assert loaded == set(found)


def collections(folder: Path, command: str, *arguments: str, status: int = 0, failpoint: str = "") -> str:
    code, _, err = flowctl(folder, "collections", command, *arguments, env={**BARE, "FLOW_FAILPOINT": failpoint})
    assert code == status, err
    return err


def test_truncate_begins_a_new_history(folder: Path) -> None:
    (folder / "old.jsonl").write_text('{"id":9,"at":"2020-01-01T00:00:00Z"}\n')
    ingest(folder, "--load-id", "may", "a.jsonl")
    run(folder)
    collections(folder, "truncate", "--collection", "l/orders", status=-9, failpoint="metadata.committing:2")
    assert ids(folder) == {1: 1, 2: 1}
    collections(folder, "truncate", "--collection", "l/orders")
    assert (ids(folder), listed(folder)) == ({}, [])
    ingest(folder, "--load-id", "may", "--clock", "/at", "old.jsonl")
    assert ids(folder) == {9: 1}
    code, _, err = flowctl(folder, "run", "--until-idle", "--local-documents", "1000")
    assert code == 1
    assert "is not the relation" in err


def is_written(folder: Path) -> bool:
    """Return whether a process has the capability to write the collection."""
    if not is_data_folder(folder / ".flow"):
        return False
    with closing(Store(folder / ".flow", reading=True)) as store:
        frontiers = store.history.frontiers("l/orders")
        return frontiers is not None and bool(frontiers.writers)


@pytest.mark.parametrize("command", [("truncate",), ("drop", "--force")], ids=" ".join)
def test_load_fails_if_its_collection_is_emptied(folder: Path, command: tuple[str, ...]) -> None:
    load_id = ("--load-id", "slow")
    process = Flowctl(
        ("ingest", "--collection", "l/orders", *load_id), cwd=folder, env=BARE, stdin=PIPE, stderr=PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        process.stdin.write('{"id":1}\n' * 5_001)
        process.stdin.flush()
        while not is_written(folder):
            assert process.poll() is None
        collections(folder, command[0], "--collection", "l/orders", *command[1:])
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "the capability to write 'l/orders' has expired, or the collection was truncated or dropped" in err
    ingest(folder, *load_id, "a.jsonl")
    assert ids(folder) == {1: 1, 2: 1}
    assert flowctl(folder, "verify")[0] == 0


def test_truncate_refuses_derived_collections_and_unknown_names(folder: Path) -> None:
    ingest(folder, "a.jsonl")
    run(folder)
    error = collections(folder, "truncate", "--collection", "l/doubled", status=1)
    assert "flowctl reset --task l/doubled\n" in error
    (folder / "flow.yaml").write_text(CATALOG + CATALOG[CATALOG.index("  l/doubled") :].replace(*READER).replace(*READ))
    run(folder)
    error = collections(folder, "truncate", "--collection", "l/doubled", status=1)
    assert "flowctl reset --task l/doubled --cascade\n" in error
    assert "no collection 'l/ordres' is stored" in collections(folder, "drop", "--collection", "l/ordres", status=2)


def test_drop_removes_a_collection_under_kills(folder: Path) -> None:
    ingest(folder, "--load-id", "may", "a.jsonl")
    assert "l/doubled reads 'l/orders'" in collections(folder, "drop", "--collection", "l/orders", status=2)
    dropped = ("--collection", "l/orders", "--force")
    collections(folder, "drop", *dropped, status=-9, failpoint="metadata.committed:2")
    assert ids(folder) == {}
    collections(folder, "drop", *dropped)
    assert list((folder / ".flow" / "collections").rglob("*.parquet")) == []
    collections(folder, "drop", *dropped, status=2)
    ingest(folder, "--load-id", "may", "b.jsonl")
    assert ids(folder) == {3: 1}


def test_truncate_refuses_tables_of_sql(folder: Path) -> None:
    with closing(Store(folder / ".flow", durable=False)) as store:
        store.tables.create("sql/public/t", [TableColumn("a", "integer", nullable=False)])
        with pytest.raises(OwnedError, match="is a table of SQL") as refused:
            store.truncate("sql/public/t")
    assert refused.value.hint == "use TRUNCATE or DROP TABLE: flowctl sql -c 'TRUNCATE \"t\"'"
