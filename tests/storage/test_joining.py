"""Data folders of several machines over one PostgreSQL and one object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import flowctl
from postgres_server import server

from derive.backup import back_up
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import start_over
from derive.errors import StorageError, TaskError
from derive.materialize.restarts import require_known_facts
from derive.protocol.specs import CatalogSpec
from derive.restore import restore
from derive.storage.folder_id import identity_of
from derive.storage.location import ObjectFolder
from derive.storage.metadata.joining import is_joined, join
from derive.storage.metadata.location import choose_location
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place

pytest.importorskip("obstore")

CATALOG = """
collections:
  j/orders: &orders
    schema: {type: object, required: [id, customer], properties: {id: {type: integer}, customer: {type: string}}}
    key: [/id]
  j/counts:
    schema: {type: object, required: [customer, n], properties: {customer: {type: string}, n: {type: integer}}}
    key: [/customer]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (customer TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: j/orders
          shuffle: {key: [/customer]}
          lambda: INSERT INTO seen VALUES ($customer, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING customer, n;
"""
TASK = "j/counts"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogSpec:
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    return load(write_catalog(tmp_path, CATALOG))


def machine(tmp_path: Path, name: str, catalog: CatalogSpec) -> World:
    """The data folder of a machine, with a cache of its own."""
    root = tmp_path / name
    settle_place(root, place_of(os.environ[VARIABLE]), creates=True)
    return World(root, catalog, cache=tmp_path / f"{name} cache")


def first_machine(tmp_path: Path, catalog: CatalogSpec) -> World:
    settle_place(tmp_path / "one", place_of(os.environ[VARIABLE]), creates=True)
    choose_location(tmp_path / "one", ObjectFolder(f"file://{tmp_path}/objects"))
    return machine(tmp_path, "one", catalog)


def test_task_continues_on_a_machine_with_an_empty_folder(tmp_path: Path, catalog: CatalogSpec) -> None:
    first = first_machine(tmp_path, catalog)
    first.ingest("j/orders", [{"id": n, "customer": "ab"[n % 2]} for n in range(6)], None)
    first.wall += 2_000_000
    first.step(InProcessExecutor(), shards=2)
    second = machine(tmp_path, "two", catalog)
    second.ingest("j/orders", [{"id": 9, "customer": "b"}], None)
    second.wall += 4_000_000
    second.step(InProcessExecutor())

    assert (is_joined(first.root), is_joined(second.root)) == (False, True)
    assert identity_of(second.root) == identity_of(first.root)
    assert [text for _, _, _, text in first.rows(TASK)][-1] == '{"customer":"b","n":4}'
    assert first.rows(TASK) == second.rows(TASK)
    assert not (second.root / "collections").exists()
    for world in (first, second):
        world.store.close()
    status, _, err = flowctl(tmp_path, "run", "--until-idle", "--data", "two", env=dict(os.environ))
    assert (status, err) == (
        2,
        (
            f"error: {second.root} has joined the data folder of another machine, so it cannot keep the state of shards"
            "\n  = let the states travel: --state-cache DIR\n"
        ),
    )


def test_folder_without_objects_does_not_join(tmp_path: Path, catalog: CatalogSpec) -> None:
    machine(tmp_path, "one", catalog).store.close()
    with pytest.raises(StorageError, match="the folders of several machines need segments in an object store"):
        machine(tmp_path, "two", catalog)


def test_joining_folder_has_the_history_of_a_restored_one(tmp_path: Path, catalog: CatalogSpec) -> None:
    """The first folder of the history gives the salt of hashes, so another machine must know it."""
    objects = ObjectFolder(f"file://{tmp_path}/restored objects")
    world = World(tmp_path / "original", catalog)
    back_up(world.store, tmp_path / "backup")
    world.store.close()
    for _ in range(2):  # the second restore replaces what the first one has stored
        restore(tmp_path / "backup", tmp_path / "restored", segments=objects)
        identity = identity_of(tmp_path / "restored")
        join(tmp_path / f"joined {identity.id}", identity.id, objects)

        assert identity_of(tmp_path / f"joined {identity.id}") == identity
        assert identity.origin == identity_of(tmp_path / "original").id
        for file in tmp_path.glob("restored*/*"):
            file.unlink() if file.is_file() else None


def test_files_of_an_earlier_release_are_moved_by_their_machine(tmp_path: Path, catalog: CatalogSpec) -> None:
    """A materialization of an earlier release has facts in the folder of its machine, which moves them first."""
    first = first_machine(tmp_path, catalog)
    first.ingest("j/orders", [{"id": 1, "customer": "a"}], None)
    first.wall += 2_000_000
    first.step(InProcessExecutor())
    second = machine(tmp_path, "two", catalog)

    require_known_facts(first.store, TASK)
    require_known_facts(second.store, "j/unknown")
    with pytest.raises(TaskError, match=f"'{TASK}' has run with an earlier release on another machine"):
        require_known_facts(second.store, TASK)
    with pytest.raises(TaskError, match="has run with an earlier release on another machine"):
        start_over(second.store, [TASK], [TASK])
    first.store.adopt_materialization(TASK)
    require_known_facts(second.store, TASK)
    start_over(second.store, [TASK], [TASK])
    first.store.close()
    second.store.close()
