"""A data folder is made for its owner alone, and one that is there is left as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from derive.storage.store import Store


@pytest.fixture(autouse=True)
def usual_mask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_new_data_folder_is_private_to_its_owner(tmp_path: Path) -> None:
    Store(tmp_path / "above" / "data").close()

    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "above/data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o2770])
def test_existing_folder_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)

    Store(tmp_path / "data").close()
    Store(tmp_path / "data").close()

    assert (tmp_path / "data").stat().st_mode & 0o7777 == mode


def test_read_only_store_creates_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "data", reading=True).close()

    assert not (tmp_path / "data").exists()
