"""Entry points: what `importlib.metadata` says, without it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from derive.protocol.entry_points import entry_points_of, load, load_all

TEXT = """
[console_scripts]
odd = odd:main

[derive.connectors]
# A comment.
odd = odd.connector:Odd
 spaced  =  odd : Spaced  [extra]
"""


def oracle(group: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}


@pytest.mark.parametrize("group", ["derive.connectors", "console_scripts", "pytest11", "no.such.group"])
def test_those_of_this_environment_are_found(group: str) -> None:
    assert entry_points_of(group) == oracle(group)


def installed(folder: Path, name: str, text: str | None) -> None:
    (folder / name).mkdir(parents=True)
    if text is not None:
        (folder / name / "entry_points.txt").write_text(text)


def test_they_are_read_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "first", "odd-1.0.dist-info", TEXT)
    installed(tmp_path / "first", "old.egg-info", "[derive.connectors]\nold = old:Old\n")
    (tmp_path / "first" / "older-1.egg-info").write_text("no folder")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "nowhere")])

    assert entry_points_of("derive.connectors") == {
        "odd": "odd.connector:Odd",
        "spaced": "odd : Spaced  [extra]",
        "old": "old:Old",
    }
    assert entry_points_of("console_scripts") == {"odd": "odd:main"}


def test_the_first_package_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "first", "Odd_Name-2.0.dist-info", None)
    installed(tmp_path / "second", "odd.name-1.0.dist-info", TEXT)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])

    assert entry_points_of("derive.connectors") == {}
    monkeypatch.setattr(sys, "path", [str(tmp_path / "second"), str(tmp_path / "first")])
    assert sorted(entry_points_of("derive.connectors")) == ["odd", "spaced"]


@pytest.fixture
def unreadable() -> Iterator[str]:
    """A folder that this process, be it root's, may not look into."""
    user = os.geteuid()
    with TemporaryDirectory() as folder:
        installed(Path(folder), "odd-1.0.dist-info", TEXT)
        Path(folder).chmod(0)
        if user == 0:
            os.seteuid(65_534)
        yield folder
        os.seteuid(user)
        Path(folder).chmod(0o700)


def test_a_folder_that_cannot_be_read_has_none(unreadable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [unreadable])

    assert entry_points_of("derive.connectors") == {}


def test_those_of_packages_in_archives_are_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("odd-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
        file.writestr("odd-1.0.dist-info/entry_points.txt", "[derive.connectors]\nodd = odd:Odd\n")
    monkeypatch.setattr(sys, "path", [str(archive), str(tmp_path)])

    assert entry_points_of("derive.connectors") == {"odd": "odd:Odd"}


def test_what_they_stand_for_is_loaded() -> None:
    assert load("derive.protocol.entry_points : load_all [extra]") is load_all

    load_all("connectors.derive_sqlite:SqliteConnector")
    assert "connectors.derive_sqlite.session" in sys.modules
