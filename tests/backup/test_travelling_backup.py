"""States that travel, in backups, in verifications, in queries of states, and in splits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from backed_up import go_on, take, world_of, wrong, wrong_with_backup
from conftest import World

from derive.document.pointer import JSON
from derive.engine.reset import reset, split
from derive.restore import restore
from derive.shard.inspection import StateQuery, copied_states
from derive.shard.state_store import read_state
from derive.storage.metadata.chain import paths_of

BATCHES = 5


def travelling(folder: Path, name: str = "data", cache: str = "cache") -> World:
    world = world_of(folder, name)
    world.store.close()
    return World(world.root, world.catalog, wall=world.wall, cache=folder / cache)


@pytest.fixture
def digest(tmp_path: Path) -> dict[str, str]:
    world = world_of(tmp_path, "undisturbed")
    go_on(world, range(BATCHES))
    found = world.digest()
    world.store.close()
    return found


def objects(world: World) -> set[str]:
    return {str(path.relative_to(world.root)) for path in (world.root / "chains").rglob("*") if path.is_file()}


def named(world: World) -> set[str]:
    return paths_of(chain for task in world.store.tasks() for chain in task.chains.values())


def test_backup_of_travelling_states_is_continued_elsewhere(tmp_path: Path, digest: dict[str, str]) -> None:
    world = travelling(tmp_path)
    go_on(world, range(2))
    take(world, tmp_path / "first")
    go_on(world, range(2, 3))
    take(world, tmp_path / "second", base=tmp_path / "first")
    world.store.close()
    shutil.rmtree(world.root)

    assert wrong_with_backup(tmp_path / "second") == []
    restore(tmp_path / "second", tmp_path / "restored")
    restored = travelling(tmp_path, "restored")
    assert objects(restored) == named(restored) != set()
    assert wrong(restored.root) == []
    go_on(restored, range(3, BATCHES))
    assert restored.digest() == digest


def test_faults_of_objects_are_found(tmp_path: Path) -> None:
    world = travelling(tmp_path)
    go_on(world, range(2))
    assert wrong(world.root) == []
    first, *_ = world.task("b/counts").chains[0]
    path = world.root / first.path
    content = path.read_bytes()

    path.write_bytes(content[: first.start] + bytes(9) + content[first.start + 9 :])
    assert [(fault.kind, fault.path, fault.task) for fault in wrong(world.root)] == [
        ("damaged", first.path, "b/counts")
    ]
    path.unlink()
    faults = {(fault.kind, fault.path, fault.task) for fault in wrong(world.root)}
    assert faults == {("missing", first.path, "b/counts")}


def test_travelling_states_can_be_queried(tmp_path: Path) -> None:
    world = travelling(tmp_path)
    go_on(world, range(2))
    spec = world.catalog.derivations["b/counts"]

    with (
        copied_states(world.store, world.root, "b/counts") as copies,
        closing(StateQuery(spec, copies, 60, 64)) as query,
    ):
        rows = list(query.rows("SELECT k, n FROM seen ORDER BY k"))

    assert rows == [{"k": 0, "n": 2}, {"k": 1, "n": 1}, {"k": 2, "n": 2}, {"k": 3, "n": 2}, {"k": 4, "n": 1}]


class DividesSeen:
    """Deletes the rows of other shards."""

    def divide_state(self, database: apsw.Connection, is_owned: Callable[[Sequence[JSON]], bool]) -> None:
        for (k,) in database.execute("SELECT k FROM seen").fetchall():
            if not is_owned([k]):
                database.execute("DELETE FROM seen WHERE k = ?", (k,))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("connector", [None, DividesSeen()])
def test_split_of_travelling_states_continues(
    connector: DividesSeen | None, tmp_path: Path, digest: dict[str, str]
) -> None:
    world = travelling(tmp_path)
    go_on(world, range(2))
    before = named(world)

    assert split(world.store, "b/counts", connector=connector) == 4
    task = world.task("b/counts")
    if connector is None:  # each half names the objects of the whole
        assert named(world) == before
        assert [task.chains[2 * (number // 2)] == task.chains[number] for number in task.chains] == [True] * 4
    else:
        seen = []
        for number in task.tokens:
            with read_state(world.store, task, number) as database:
                assert database is not None
                seen += [k for (k,) in database.execute("SELECT k FROM seen")]
        assert sorted(seen) == [0, 1, 2, 3, 4]
    world.cache = tmp_path / "another"
    go_on(world, range(2, BATCHES), shards=None)
    assert world.digest() == digest
    assert wrong(world.root) == []
    assert objects(world) == named(world)


def test_reset_removes_the_objects_of_a_task(tmp_path: Path, digest: dict[str, str]) -> None:
    world = travelling(tmp_path)
    go_on(world, range(2))
    reset(world.catalog, world.store, ["b/counts"], cascade=True)

    assert objects(world) == named(world) == set()
    go_on(world, range(2, BATCHES))
    assert world.digest().keys() == digest.keys()
    assert wrong(world.root) == []
