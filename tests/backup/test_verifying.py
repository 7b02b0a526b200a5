"""Each fault of a data folder is told, with its kind and its path; nothing is told of a folder that is whole."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from backed_up import go_on, take, world_of, wrong
from conftest import World
from forked_flowctl import flowctl

from derive.restore import restore
from derive.storage.compaction import compact
from derive.storage.metadata.identity import COMMITS
from derive.storage.store import Store


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = world_of(tmp_path)
    go_on(world, range(2))
    return world


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backed-up")
    world = world_of(folder)
    go_on(world, range(2))
    take(world, folder / "backup")
    world.store.close()
    return folder / "backup"


def a_segment(root: Path) -> Path:
    return min(root.rglob("ingest-*.parquet"))


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at:][1:]


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """Damage a folder by a change of the content of a segment."""

    def damage(root: Path) -> Path:
        a_segment(root).write_bytes(change(a_segment(root).read_bytes()))
        return a_segment(root)

    return damage


def remove_segment(root: Path) -> Path:
    (path := a_segment(root)).unlink()
    return path


def change_old_segment(root: Path) -> Path:
    with closing(sqlite3.connect(root / "metadata.db")) as db, db:
        db.execute("UPDATE segment SET checksum = ''")
    column = pq.read_metadata(a_segment(root)).row_group(0).column(4)
    at = column.data_page_offset + column.total_compressed_size - 2
    return changed(lambda content: flipped(content, at))(root)


def swap_segments(root: Path) -> Path:
    one, two = sorted(root.rglob("ingest-*.parquet"), key=lambda path: path.stat().st_size)
    one.write_bytes(two.read_bytes())
    return one


def add_segment(root: Path) -> Path:
    path = a_segment(root).with_name("ingest-00000000-0000-0000-0000-000000000000-0.parquet")
    return Path(shutil.copyfile(a_segment(root), path))


def add_other_file(root: Path) -> Path:
    (path := root / "collections/notes").touch()
    return path


def add_state(root: Path) -> Path:
    (path := root / "state/b/gone@").mkdir()
    return path


def a_state(root: Path) -> Path:
    return min(root.rglob("state.db"), key=lambda path: (len(path.parts), path))


def damage_state(root: Path) -> Path:
    content = a_state(root).read_bytes()
    a_state(root).write_bytes(content[:4096] + bytes(len(content) - 4096))
    return a_state(root)


def remove_state(root: Path) -> Path:
    (path := a_state(root)).unlink()
    return path


def remove_folder_of_state(root: Path) -> Path:
    shutil.rmtree((path := a_state(root)).parent)
    return path


def put_back_state(root: Path) -> Path:
    with closing(sqlite3.connect(a_state(root))) as db, db:
        db.execute("UPDATE flow_shard SET token = 'another'")
    with closing(sqlite3.connect(a_state(root))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return a_state(root)


DAMAGES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "removed": (remove_segment, "missing"),
    "cut": (changed(lambda content: content[:-100]), "truncated"),
    "emptied": (changed(lambda _: b""), "truncated"),
    "extended": (changed(lambda content: content + b"more"), "changed"),
    "changed": (changed(lambda content: flipped(content, len(content) // 2)), "changed"),
    "footer changed": (changed(lambda content: flipped(content, len(content) - 30)), "changed"),
    "swapped": (swap_segments, "changed"),
    "old and changed": (change_old_segment, "damaged"),
    "added": (add_segment, "unknown"),
    "other file added": (add_other_file, "unknown"),
    "state added": (add_state, "unknown"),
    "state damaged": (damage_state, "damaged"),
    "state removed": (remove_state, "missing"),
    "state removed with its folder": (remove_folder_of_state, "missing"),
    "state put back": (put_back_state, "damaged"),
}


def test_verify_finds_no_damage_in_a_folder_in_use(world: World) -> None:
    assert wrong(world.root) == []
    for spec in world.catalog.collections.values():
        compact(world.store, spec)  # replaced files stay for a while
    capability = world.store.acquire_write("b/source")
    (world.root / f"collections/b/source@/ingest-{capability.id}-0.parquet").write_bytes(b"being written")
    assert wrong(world.root) == []
    world.store.close()
    assert wrong(world.root) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("damage", "kind"), DAMAGES.values(), ids=DAMAGES)
def test_verify_reports_each_damage_with_its_kind_and_path(
    tmp_path: Path, backup: Path, damage: Callable[[Path], Path], kind: str
) -> None:
    root = tmp_path / "restored"  # where the state of each shard is in one file
    restore(backup, root, copies=True)
    assert wrong(root) == []
    path = str(damage(root).relative_to(root))

    (finding,) = wrong(root)
    assert (finding.kind, finding.path) == (kind, path)
    status, out, err = flowctl(tmp_path, "verify", "--data", "restored", "-o", "json")
    row = json.loads(out)
    assert (status, row["kind"], row["path"]) == (1, kind, path)
    assert err == f"1 {kind}\n"


def test_verify_reports_undamaged_folders_and_backups(tmp_path: Path, world: World) -> None:
    take(world, tmp_path / "backup")
    world.store.close()

    assert flowctl(tmp_path, "verify", "--data", "data") == (0, "", "nothing is wrong\n")
    assert flowctl(tmp_path, "verify", "--backup", "backup") == (0, "", "nothing is wrong\n")
    (tmp_path / "backup/file").touch()
    status, out, _ = flowctl(tmp_path, "verify", "--backup", "backup", "-o", "table")
    assert (status, "unknown" in out, "file" in out) == (1, True, True)
    assert flowctl(tmp_path, "verify", "--data", "none")[0] == 2
    assert flowctl(tmp_path, "verify", "--backup", "data")[0] == 2
    assert flowctl(tmp_path, "verify", "--backup", "backup", "--data", "data")[0] == 2


def test_verify_reports_an_older_database_until_it_is_accepted(tmp_path: Path, world: World) -> None:
    world.store.close()
    kept = {path.name: path.read_bytes() for path in world.root.glob("metadata.db*")}
    world = world_of(tmp_path, wall=world.wall)
    go_on(world, range(2, 4))
    world.store.close()
    for path in world.root.glob("metadata.db*"):
        path.unlink()
    for name, content in kept.items():
        (world.root / name).write_bytes(content)
    files = set(world.root.rglob("*.parquet"))

    assert flowctl(tmp_path, "collections", "list", "--data", "data")[0] == 1
    status, out, _ = flowctl(tmp_path, "verify", "--data", "data")
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert (status, kinds.count("older"), kinds.count("unknown")) == (1, 1, 6)
    status, _, err = flowctl(tmp_path, "verify", "--data", "data", "--accept-older")
    assert (status, "are now the latest ones" in err) == (1, True)

    store = Store(world.root)
    assert int((world.root / COMMITS).read_text()) > 0
    store.close()
    assert flowctl(tmp_path, "compact", "--data", "data")[0] == 0
    assert flowctl(tmp_path, "run", "--until-idle", "--local-documents", "99", "--data", "data")[0] in {0, 1}
    assert set(world.root.rglob("*.parquet")) >= files
    assert "older" not in {finding.kind for finding in wrong(world.root)}
