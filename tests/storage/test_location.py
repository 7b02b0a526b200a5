"""The location of the segments is chosen once, for a new data folder, and belongs to one data folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_flowctl import flowctl

from derive.errors import StorageError, UsageError
from derive.storage.folder_id import folder_id
from derive.storage.location import ObjectFolder, claim
from derive.storage.metadata.location import choose_location
from derive.storage.store import Store

CATALOG = """
collections:
  k/orders: { key: [/id], schema: { type: object, required: [id], properties: { id: { type: integer } } } }
"""


def location_of(folder: Path) -> object:
    store = Store(folder, reading=True)
    store.close()
    return store.location


@pytest.fixture
def there(tmp_path: Path) -> ObjectFolder:
    return ObjectFolder.of(f"file://{tmp_path}/there")


@pytest.mark.both_databases
def test_location_is_found_by_later_commands(tmp_path: Path, there: ObjectFolder) -> None:
    for _ in range(2):
        choose_location(tmp_path / "data", there)
        assert location_of(tmp_path / "data") == there


@pytest.mark.both_databases
def test_another_location_is_refused(tmp_path: Path, there: ObjectFolder) -> None:
    choose_location(tmp_path / "data", there)

    with pytest.raises(UsageError, match=f"the segments of the data folder .* are at {there}"):
        choose_location(tmp_path / "data", ObjectFolder.of(f"file://{tmp_path}/elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert location_of(tmp_path / "data") == there


def test_folder_with_collections_keeps_its_segments(tmp_path: Path, there: ObjectFolder) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    ingest = ("ingest", "--collection", "k/orders", "--format", "json", "-")
    assert flowctl(tmp_path, *ingest, text='{"id": 1}')[0] == 0

    status, _, err = flowctl(tmp_path, *ingest, "--segments", str(there), text='{"id": 2}')

    assert status == 2
    assert "are in the folder itself" in err
    assert not (tmp_path / "there").exists()
    assert location_of(tmp_path / ".flow") == tmp_path / ".flow"


def test_location_of_another_folder_is_refused(tmp_path: Path, there: ObjectFolder) -> None:
    choose_location(tmp_path / "data", there)

    with pytest.raises(StorageError, match="the segments of another data folder"):
        choose_location(tmp_path / "other", there)
    assert location_of(tmp_path / "other") == tmp_path / "other"


def test_choice_that_was_killed_after_its_mark_is_repeated(tmp_path: Path, there: ObjectFolder) -> None:
    Store(tmp_path / "data").close()
    claim(there, folder_id(tmp_path / "data"))
    assert location_of(tmp_path / "data") == tmp_path / "data"

    choose_location(tmp_path / "data", there)

    assert location_of(tmp_path / "data") == there


def test_url_of_a_data_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "run", "--data", "s3://key:secret@bucket/prefix")

    assert (status, out) == (2, "")
    assert "the data folder cannot be at s3:/…" in err
    assert "secret" not in err
    assert "--data DIR --segments URL" in err
