"""An archive of Spark's classes, which halves the start time of its virtual machine.

Half of a start is spent on finding some ten thousand classes in two hundred files, and on verifying them. Java can
record the classes that a run loads, and write them to a file in their memory format. Later virtual machines map that
file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from derive.durable import sync
from derive.errors import TaskError
from derive.spark.executor import SparkExecutor
from derive.spark.session import archive_folder, class_archive, ensure_java, forget_starts, java_options
from derive.storage.blobs import translated

_TRAIN = """
import sys
from pathlib import Path
from derive.spark.class_archive import train
print(train(*map(Path, sys.argv[1:])))
"""
_PREPARE = """
from derive.spark.class_archive import prepare
prepare()
"""
_WORK = "prepare-"


def is_prepared() -> bool:
    """Return true if there is an archive for this Java, Spark and environment."""
    return class_archive(ensure_java()).exists()


def prepare() -> Path:
    """Create the archive, which takes as long as about three starts of Spark; return its path.

    Raises:
        TaskError: Java cannot create the archive.
        FlowError: the archive cannot be written to its folder.
    """
    java_home = ensure_java()
    archive = class_archive(java_home)
    folder = archive.parent
    with translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as name:
            if archive.exists():
                return archive  # another process has created it meanwhile
            log, classes, made = (Path(name) / file for file in ("spark.log", "classes", "archive"))
            # The virtual machine inherits the pipes: the pipes close once the virtual machine has ended and has
            # recorded all classes.
            training = [sys.executable, "-c", _TRAIN, *map(str, (log, classes, made))]
            class_path = _output_of(training).strip()
            java = [str(java_home / "bin" / "java"), f"-XX:SharedArchiveFile={made}", "-XX:+UseParallelGC"]
            java += ["-Xlog:disable", "-cp", class_path]
            if made.exists():
                _output_of([*java, "-Xshare:on", "-XX:+VerifySharedSpaces", "-version"])
            else:  # this Java has no archive of its own classes, which the trained one would have extended
                _output_of([*java, "-Xshare:dump", f"-XX:SharedClassListFile={classes}"])
            sync(made)  # Java maps the file without a check of its length
            made.replace(archive)
        forget_starts(folder)
    return archive


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock out other processes that create an archive, and remove the files of killed processes."""
    with (folder / "prepare.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def can_prepare() -> bool:
    """Return true if this user can write to the archive's folder."""
    folder = archive_folder()
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def prepare_in_background(script: str = _PREPARE) -> int:
    """Start a process with low priority that creates the archive and outlives this process; return its id.

    Args:
        script: Python code that it runs; tests pass others.
    """
    null = subprocess.DEVNULL
    command = [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, 19)\n{script}"]
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True).pid


def train(log: Path, classes: Path, archive: Path) -> str:
    """Start Spark without an archive, and run a small job; return the class path.

    Args:
        log: file for Spark's log.
        classes: file for the names of the loaded classes.
        archive: file for the archive, which Java writes when it ends if it has an archive of its own classes.
    """
    recorded = (f"-XX:DumpLoadedClassList={classes}", f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable")
    options = java_options(log, *recorded)
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
