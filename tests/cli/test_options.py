"""Where the data lies."""

from pathlib import Path

import pytest

from derive.cli.options import data_folder


def test_data_lies_beside_the_catalog_unless_told_otherwise() -> None:
    assert data_folder(Path("/catalog/flow.yaml"), None) == Path("/catalog/.flow")
    assert data_folder(Path("/catalog/flow.yaml"), Path("/data")) == Path("/data")


def test_a_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert data_folder(Path("flow.yaml"), None) == tmp_path / ".flow"
