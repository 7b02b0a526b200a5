"""A start of Spark that nobody waits for any more is ended, with the Java that it has begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SCRIPT = """
import os, sys, threading, time
from pathlib import Path
from derive.spark.executor import SparkExecutor

executor, errors = SparkExecutor(None, Path(sys.argv[1]) / "spark.log"), []

def start():
    try:
        executor.warm_up()
    except Exception as error:
        errors.append(type(error).__name__)

def parent_of(process):
    try:
        return (process / "status").read_text().partition("PPid:")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return None

def children():
    return [process.name for process in Path("/proc").glob("[0-9]*") if parent_of(process) == str(os.getpid())]

thread = threading.Thread(target=start)
thread.start()
while not Path(sys.argv[1], "spark.log").exists() and sys.argv[2] == "late" or not children():
    time.sleep(0.01)
begun = time.monotonic()
getattr(executor, sys.argv[3])()
thread.join()
print(errors, time.monotonic() - begun < 5, children())
executor.close()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_start_of_spark_can_be_ended(when: str, how: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), when, how],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env=os.environ,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['TaskError'] True []\n"
