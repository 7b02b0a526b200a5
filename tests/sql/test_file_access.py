"""Sources read files below the folders that are named, and nothing else, however a path is written."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.execution.state import User
from derive.sql.session import SqlSession
from derive.sql.sources.followed_file import FileAccess

NAMES = st.sampled_from(["inside", "outside", "inside/deep", "inside/secret", "a", "b"])
PARTS = st.lists(st.sampled_from(["inside", "outside", "deep", "secret", "a", "b", "..", ".", "file"]), max_size=6)


def sqlstate_of(files: FileAccess, path: Path) -> str | bytes:
    """Return the contents of a file, or the SQLSTATE with which it cannot be opened."""
    try:
        with files.open(path) as file:
            return file.read()
    except SqlError as error:
        return error.sqlstate


@settings(max_examples=examples(300), deadline=None)
@given(links=st.lists(st.tuples(NAMES, PARTS), max_size=4), parts=PARTS)
def test_access_depends_on_the_resolved_path(links: list[tuple[str, list[str]]], parts: list[str]) -> None:
    with TemporaryDirectory() as temporary:
        root = Path(temporary).resolve()
        for folder in ("inside/deep", "inside/secret", "outside"):
            (root / folder).mkdir(parents=True)
            (root / folder / "file").write_text(folder)
        (root / "inside" / "file").write_text("inside")
        for where, to in links:
            at = root / where / "link" if (root / where).is_dir() else root / "inside" / where.replace("/", "-")
            if not at.is_symlink():
                at.symlink_to(root.joinpath(*to))
        path = root.joinpath(*parts)
        real = Path(os.path.realpath(path))
        is_below = real.is_relative_to(root / "inside") and not real.is_relative_to(root / "inside" / "secret")
        seen = sqlstate_of(FileAccess([root / "inside"], [root / "inside" / "secret"]), path)
        if not is_below:
            assert seen == "42501"
        else:
            assert seen == (real.read_bytes() if real.is_file() else "58P01")


@pytest.mark.parametrize(
    "written",
    ["outside/file", "inside/../outside/file", "inside/link", "inside/folder/file", "inside/circle", "/etc/passwd"],
)
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    (tmp_path / "inside" / "link").symlink_to("../outside/file")
    (tmp_path / "inside" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "inside" / "circle").symlink_to("circle")
    assert sqlstate_of(FileAccess([tmp_path / "inside"]), tmp_path / written) in {"42501", "58P01"}
    assert sqlstate_of(FileAccess([]), tmp_path / written) == "42501"


def test_exchanging_folders_during_opening_opens_no_other_file(tmp_path: Path) -> None:
    """A folder is now itself and now a link to another one, again and again: no byte from there is ever read."""
    for name in ("inside/now", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    now, kept, link = tmp_path / "inside" / "now", tmp_path / "inside" / "kept", tmp_path / "inside" / "link"
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            now.rename(kept)
            link.symlink_to(tmp_path / "outside")
            link.rename(now)
            now.unlink()
            kept.rename(now)

    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    try:
        files = FileAccess([tmp_path / "inside"])
        seen: set[str | bytes] = set()
        end = time.monotonic() + PATIENCE_SECONDS
        while not {b"inside/now", "42501", "58P01"} <= seen and time.monotonic() < end:
            seen |= {sqlstate_of(files, now / "file") for _ in range(1000)}
    finally:
        is_over.set()
        exchanging.join()
    assert b"inside/now" in seen
    assert seen <= {b"inside/now", "42501", "58P01"}


async def test_users_without_the_mark_name_no_files(tmp_path: Path, coordinator: Coordinator) -> None:
    (tmp_path / "file").write_text("a\n1\n")
    created = f"CREATE SOURCE s (a text) FROM FILE '{tmp_path / 'file'}' FORMAT CSV"
    unmarked, marked = Client(coordinator), Client(coordinator)
    unmarked.session = SqlSession(coordinator, user=User("bob", reads_files=False))
    assert await unmarked.fails(created) == "42501"
    await unmarked("CREATE SOURCE c FROM LOAD GENERATOR COUNTER")  # reads no file
    assert await unmarked.fails(f"COPY (SELECT 1) TO '{tmp_path / 'new'}'") == "0A000"
    assert await unmarked.fails(f"COPY c FROM '{tmp_path / 'file'}'") == "0A000"
    await marked(created)


def test_source_of_a_forbidden_file_reports_the_error(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    (tmp_path / "file").write_text("1\n")
    world.script(f"CREATE SOURCE s FROM FILE '{tmp_path / 'file'}' FORMAT JSON")

    async def work(coordinator: Coordinator) -> str:
        coordinator.own()
        client = Client(coordinator)
        while not (rows := [row for row in await client("SHOW MAINTENANCE") if row[2]]):
            assert await client.session.prepare("SELECT 1", ())
        assert rows[0][0] == "s"
        return await client.fails("SELECT * FROM s")

    async def served() -> str:
        coordinator = Coordinator(world.data, world.catalog, files=FileAccess([tmp_path / "data"]))
        try:
            return await work(coordinator)
        finally:
            await coordinator.close()

    assert asyncio.run(served()) == "42501"
