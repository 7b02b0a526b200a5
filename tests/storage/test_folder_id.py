"""What tells data folders apart."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from derive.storage.folder_id import folder_id


def test_concurrent_readers_get_one_folder_id(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        reported = set(pool.map(folder_id, [tmp_path] * 32))

    assert len(reported) == 1
    assert reported == {folder_id(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == ["folder-id"]


def test_folders_have_distinct_identifiers(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()

    assert folder_id(folders[0]) != folder_id(folders[1])
    assert folder_id(tmp_path / "none") == ""
