"""What is written down of compute instances is that of the server at work."""

from __future__ import annotations

from pathlib import Path

from derive.sql.maintenance.recording import FILE, Described, Recording, read_record
from derive.storage.store import Store


def test_fenced_server_writes_no_record(tmp_path: Path) -> None:
    superseded, store = False, Store(tmp_path, durable=False)
    instances: list[Described] = [{"name": "r1"}]
    recording = Recording(tmp_path, lambda: list(instances), lambda: superseded)
    recording._write()
    record = read_record(tmp_path, store.serving)
    assert record is not None
    assert record.instances == [{"name": "r1"}]

    superseded = True
    instances.append({"name": "r2"})
    recording._write()
    assert read_record(tmp_path, store.serving) == record
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(FILE)] == [FILE]
