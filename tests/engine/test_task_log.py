"""Logs of tasks: entries come back in order, files stay bounded, and a broken line harms nobody."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

from derive.storage.task_log import Entry, LogChanges, LogReader, TaskLog, log_file, recent_entries

TASK = "acme/b c"


def entries(root: Path) -> list[Entry]:
    with closing(LogReader(root, TASK)) as reader:
        return reader.read()


def messages(root: Path) -> list[str]:
    return [each["message"] for each in entries(root)]


def test_entries_survive_a_round_trip(tmp_path: Path) -> None:
    assert entries(tmp_path) == []
    TaskLog(tmp_path, TASK).write("info", "begun")
    TaskLog(tmp_path, TASK).write("warn", "ä\nb", documents=3)

    first, second = entries(tmp_path)
    at = first.pop("at"), second.pop("at")
    assert at[0] <= at[1]
    assert first == {"level": "info", "task": TASK, "message": "begun"}
    assert second == {"level": "warn", "task": TASK, "message": "ä\nb", "documents": 3}
    assert log_file(tmp_path, TASK) == tmp_path / "logs" / "acme" / "b c@.jsonl"


def test_truncated_line_is_skipped(tmp_path: Path) -> None:
    log = TaskLog(tmp_path, TASK)
    log.write("info", "a")
    file = log_file(tmp_path, TASK)
    file.write_bytes(file.read_bytes() + b'{"at": "20\n')
    log.write("info", "b")

    assert messages(tmp_path) == ["a", "b"]


def test_a_log_keeps_the_last_two_files(tmp_path: Path) -> None:
    log = TaskLog(tmp_path, TASK, most_bytes=1_000)
    for number in range(100):
        log.write("info", f"{number:03} {'x' * 100}")

    kept = [int(each[:3]) for each in messages(tmp_path)]
    assert kept == list(range(kept[0], 100))
    assert 5 <= len(kept) <= 10
    assert sorted(each.name for each in (tmp_path / "logs" / "acme").iterdir()) == ["b c@.jsonl", "b c@.jsonl.1"]


def test_concurrent_writers_keep_lines_whole(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for _ in range(200):
            TaskLog(tmp_path, TASK, most_bytes=300_000).write("info", name * 500)

    threads = [threading.Thread(target=write, args=[name]) for name in "abcd"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    found = messages(tmp_path)
    assert len(found) == 800
    assert {(text[0], len(set(text)), len(text)) for text in found} == {(name, 1, 500) for name in "abcd"}


def test_full_disk_does_not_stop_a_task(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    TaskLog(tmp_path, TASK).write("info", "lost")
    assert (tmp_path / "logs").read_text() == "a file where the folder should be"


def test_log_reader_continues_after_its_last_line(tmp_path: Path) -> None:
    log, seen = TaskLog(tmp_path, TASK, most_bytes=500), []
    with closing(LogReader(tmp_path, TASK)) as reader:
        for number in range(30):
            log.write("info", f"{number:03} {'x' * 100}")
            seen += [int(each["message"][:3]) for each in reader.read()]
        assert seen == list(range(30))
        assert reader.read() == []


def test_incomplete_line_is_read_later(tmp_path: Path) -> None:
    TaskLog(tmp_path, TASK).write("info", "a")
    file = log_file(tmp_path, TASK)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:10])
    with closing(LogReader(tmp_path, TASK)) as reader:
        assert [each["message"] for each in reader.read()] == ["a"]
        file.write_bytes(whole + whole)
        assert [each["message"] for each in reader.read()] == ["a"]


def test_recent_entries_are_the_newest_entries(tmp_path: Path) -> None:
    assert recent_entries(tmp_path, TASK) == []
    for number in range(100):
        TaskLog(tmp_path, TASK).write("info", f"{number}")
    recent = [int(each["message"]) for each in recent_entries(tmp_path, TASK, size=1_000)]
    assert recent == list(range(recent[0], 100))
    assert 5 <= len(recent) <= 15


def test_log_followers_wake_for_new_entries(tmp_path: Path) -> None:
    changes = LogChanges(tmp_path, [TASK])
    changes.begin()
    changes.wait()  # there is no folder yet
    TaskLog(tmp_path, TASK).write("info", "one")
    begun = time.monotonic()
    for message in ("two", "three"):
        changes.begin()
        TaskLog(tmp_path, TASK).write("info", message)
        changes.wait()
    assert time.monotonic() - begun < 60
