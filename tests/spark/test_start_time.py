"""How long Spark takes to start is remembered, and forgotten once there is an archive of its classes."""

from __future__ import annotations

from pathlib import Path

from derive.spark.session import forget_starts, remember_start, start_seconds


def test_unmeasured_start_time_depends_on_the_class_archive(tmp_path: Path) -> None:
    assert start_seconds(None, tmp_path) == 10.5
    assert start_seconds(None, tmp_path / "missing") == 10.5
    (tmp_path / "spark-01234567.jsa").touch()
    assert start_seconds(None, tmp_path) == 6.0


def test_single_slow_start_is_damped(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    seen = []
    for seconds in (6.0, 10.0, 60.0, 5.0):
        remember_start(None, seconds, folder)
        seen.append(start_seconds(None, folder))

    assert seen == [6.0, 8.0, 15.75, 5.0]
    assert start_seconds("spark://host:7077", folder) == 10.5
    forget_starts(folder)
    assert start_seconds(None, folder) == 10.5


def test_damaged_or_unwritable_measurements_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "spark-start.json").write_text("[1")
    assert start_seconds(None, tmp_path) == 10.5
    remember_start(None, 3.0, tmp_path)
    assert start_seconds(None, tmp_path) == 3.0

    (tmp_path / "file").touch()
    remember_start(None, 3.0, tmp_path / "file")
    assert start_seconds(None, tmp_path / "file") == 10.5
