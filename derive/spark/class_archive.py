"""An archive of Spark's classes, with which its virtual machine starts in about half the time.

Half of a start goes into finding some ten thousand classes in two hundred files, and verifying them. Java can note
which classes a run loads, and write them to a file as it keeps them in memory; the next virtual machine maps that file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from derive.errors import TaskError
from derive.spark.executor import SparkExecutor
from derive.spark.java import class_archive, ensure_java, java_options
from derive.storage.disk_errors import translated
from derive.storage.durable import sync

_TRAIN = """
import sys
from pathlib import Path
from derive.spark.class_archive import train
print(train(*map(Path, sys.argv[1:])))
"""


def is_prepared() -> bool:
    """Whether there is an archive for this Java, Spark and environment."""
    return class_archive(ensure_java()).exists()


def prepare() -> Path:
    """Make the archive, which takes about as long as three starts of Spark; returns its path.

    Raises:
        TaskError: Java cannot make one.
        FlowError: it cannot be written where it belongs.
    """
    java_home = ensure_java()
    archive = class_archive(java_home)
    with translated(archive.parent):
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as name:
            log, classes, made = (Path(name) / file for file in ("spark.log", "classes", "archive"))
            # The virtual machine shares the pipes, so both ends of them are closed when it has ended and noted all.
            class_path = _output_of([sys.executable, "-c", _TRAIN, str(log), str(classes)]).strip()
            dump = [str(java_home / "bin" / "java"), "-Xshare:dump", "-XX:+UseParallelGC", "-Xlog:disable"]
            _output_of(
                [*dump, f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}", "-cp", class_path]
            )
            sync(made)  # Java maps the file without a look at its end
            made.replace(archive)
    return archive


def train(log: Path, classes: Path) -> str:
    """Start Spark with nothing archived, and run a small job; returns the class path.

    Args:
        log: where Spark logs.
        classes: where Java notes which classes it has loaded.
    """
    options = java_options(log, f"-XX:DumpLoadedClassList={classes}")
    executor = SparkExecutor(None, log, {"spark.driver.extraJavaOptions": options})
    executor.warm_up()
    rows = executor.session.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.class.path')").collect()
    executor.close()
    return str(rows[0][0])


def _output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise TaskError(f"Java cannot archive Spark's classes: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
