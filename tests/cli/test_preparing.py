"""Spark's classes are archived by themselves, where a person watches and has not turned it off."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

from derive.cli.prepare import is_useful, prepare_after
from derive.spark.executor import SparkExecutor


@pytest.mark.parametrize(
    ("setting", "is_watched", "wanted"),
    [
        (None, True, True),
        (None, False, False),
        ("", True, True),
        ("never", True, False),
        ("never", False, False),
        ("always", False, True),
    ],
)
def test_preparation_runs_on_a_terminal_by_default(setting: str | None, is_watched: bool, wanted: bool) -> None:
    environment = {} if setting is None else {"FLOW_PREPARE": setting}

    assert is_useful(environment, is_watched=is_watched) is wanted


def test_run_without_spark_prepares_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_after(SparkExecutor(None, tmp_path / "spark.log"))

    assert capsys.readouterr().err == ""


SCRIPT = """
import os, time
from pathlib import Path
print("said to nobody")
told = f"{os.nice(0)} {os.getsid(0) == os.getpid()} {os.readlink('/proc/self/fd/1')}"
Path("told.new").write_text(told)
Path("told.new").replace("told")
while Path("told").exists():
    time.sleep(0.01)
"""
FLOWCTL = "import sys; from derive.spark.class_archive import prepare_in_background; prepare_in_background(sys.argv[1])"


def test_background_preparation_outlives_a_run_and_keeps_none_of_its_files_open(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FLOWCTL, SCRIPT], capture_output=True, check=True, cwd=tmp_path)

    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told = (tmp_path / "told").read_text()
    (tmp_path / "told").unlink()
    assert told == "19 True /dev/null"
