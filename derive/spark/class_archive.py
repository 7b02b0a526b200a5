"""An archive of Spark's classes, with which its virtual machine starts in about half the time.

Half of a start goes into finding some ten thousand classes in two hundred files, and verifying them. Java can note
which classes a run loads, and write them to a file as it keeps them in memory; the next virtual machine maps that file.
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
from derive.spark.java import archive_folder, class_archive, ensure_java, java_options
from derive.spark.start_time import forget_starts
from derive.storage.disk_errors import translated

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
    folder = archive.parent
    with translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as name:
            if archive.exists():
                return archive  # another process has made it meanwhile
            log, classes, made = (Path(name) / file for file in ("spark.log", "classes", "archive"))
            # The virtual machine shares the pipes, so both ends of them are closed when it has ended and noted all.
            class_path = _output_of([sys.executable, "-c", _TRAIN, str(log), str(classes)]).strip()
            dump = [str(java_home / "bin" / "java"), "-Xshare:dump", "-XX:+UseParallelGC", "-Xlog:disable"]
            _output_of(
                [*dump, f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}", "-cp", class_path]
            )
            sync(made)  # Java maps the file without a look at its end
            made.replace(archive)
        forget_starts(folder)
    return archive


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process that makes an archive, and remove what one has left behind that was killed over it."""
    with (folder / "prepare.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def can_prepare() -> bool:
    """Whether this user may write the archive where it belongs."""
    folder = archive_folder()
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def prepare_in_background(script: str = _PREPARE) -> int:
    """Let a process make the archive that outlives this one, and uses what others leave of the machine; its id.

    Args:
        script: what it runs; tests hand in others.
    """
    null = subprocess.DEVNULL
    command = [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, 19)\n{script}"]
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True).pid


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
