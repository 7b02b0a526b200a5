"""Temporary folders: their end, and the removal of those whose process was killed."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from derive import scratch
from derive.scratch import scratch_folder


def test_folder_is_removed_after_its_block(tmp_path: Path) -> None:
    with scratch_folder(str(tmp_path)) as folder:
        (folder / "in").mkdir()
        (folder / "in" / "file").write_text("text")
        assert folder.parent == tmp_path

    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    """A folder of a process that lives is locked; folders with other names are never touched."""
    text = f"""
from derive.scratch import scratch_folder
with scratch_folder({str(tmp_path)!r}) as folder:
    (folder / "file").write_text("text")
    print(folder.name, flush=True)
    input()
"""
    child = Popen([sys.executable, "-c", text], stdin=PIPE, stdout=PIPE, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    (tmp_path / "flowctl-scratch-file").write_text("a file of somebody")
    (tmp_path / "flowctl-other").mkdir()
    kept = {"flowctl-scratch-file", "flowctl-other"}

    scratch._sweep.cache_clear()
    with scratch_folder(str(tmp_path)) as alive:
        assert {path.name for path in tmp_path.iterdir()} == {name, alive.name, *kept}
    child.kill()
    child.communicate()
    scratch._sweep.cache_clear()
    with scratch_folder(str(tmp_path)) as alive:
        assert {path.name for path in tmp_path.iterdir()} == {alive.name, *kept}


def test_folder_that_is_removed_before_it_has_a_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that removes it holds the lock meanwhile, so the owner sees afterwards that it is gone."""
    lock = fcntl.flock
    removed: list[str] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            Path(removed[0]).rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with scratch_folder(str(tmp_path)) as folder:
        assert [str(folder) != path for path in removed] == [True]
        assert folder.is_dir()
