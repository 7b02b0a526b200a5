"""How long Spark takes to start is remembered, and forgotten once there is an archive of its classes."""

from __future__ import annotations

from pathlib import Path

from derive.spark.start_time import forget_starts, remember_start, start_seconds


def test_what_nobody_has_measured_depends_on_whether_there_is_an_archive(tmp_path: Path) -> None:
    assert start_seconds(None, tmp_path) == 10.5
    assert start_seconds(None, tmp_path / "missing") == 10.5
    (tmp_path / "spark-01234567.jsa").touch()
    assert start_seconds(None, tmp_path) == 6.0


def test_one_slow_start_does_not_count_for_all(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    seen = []
    for seconds in (6.0, 10.0, 60.0, 5.0):
        remember_start(None, seconds, folder)
        seen.append(start_seconds(None, folder))

    assert seen == [6.0, 8.0, 15.75, 5.0]
    assert start_seconds("spark://host:7077", folder) == 10.5
    forget_starts(folder)
    assert start_seconds(None, folder) == 10.5


def test_what_is_damaged_or_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "spark-start.json").write_text("[1")
    assert start_seconds(None, tmp_path) == 10.5
    remember_start(None, 3.0, tmp_path)
    assert start_seconds(None, tmp_path) == 3.0

    (tmp_path / "file").touch()
    remember_start(None, 3.0, tmp_path / "file")
    assert start_seconds(None, tmp_path / "file") == 10.5
