"""The Spark session: start, settings, log, and the measured time of a start."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from derive.errors import TaskError
from derive.spark.java import archive_folder, archive_options, class_archive, ensure_java, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
    "spark.sql.ansi.enabled": "false",
    "spark.shuffle.sort.bypassMergeThreshold": "1000",
    "spark.python.daemon.module": "derive.spark.daemon",
    # Exchanges with a worker over TCP wait for acknowledgements: a job took 0.2 s, and takes half of that without TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings for every environment: quiet, fair to parallel transactions, with batches of the workers' size."""


_END_SECONDS = 5.0
"""Time limit for the end of a start, seconds."""


def start_session(master: str | None, log_file: Path, conf: Mapping[str, str]) -> SparkSession:
    """Start Spark with its log in `log_file`.

    Args:
        master: Spark master URL; None for this machine's cores.
        log_file: file for the virtual machine's log.
        conf: settings of Spark that override ours.

    Raises:
        TaskError: Spark does not start.
    """
    java_home = ensure_java()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("flowctl").master(master or f"local[{os.cpu_count()},4]")
    settings = {
        "spark.driver.extraJavaOptions": java_options(log_file, *archive_options(class_archive(java_home))),
        "spark.driver.memory": os.environ.get("FLOW_DRIVER_MEMORY", "2g"),
        **_SETTINGS,
    }
    if master is None:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as exc:
        raise TaskError(f"Spark does not start with Java at {java_home}: {exc}", hint=f"see {log_file}") from exc
    session.sparkContext.setLogLevel("WARN")
    _own_interrupts()
    return session


def end_start(starter: Callable[[], int | None]) -> None:
    """End the start of Spark in another thread, which then fails there.

    Java is a child of that thread. On systems that do not report child processes, Java ends by itself: its standard
    input is closed when this process ends.

    Args:
        starter: returns the system's id of the thread; None once its start has ended.
    """
    deadline = time.monotonic() + _END_SECONDS
    while (thread := starter()) is not None and time.monotonic() < deadline:
        with suppress(OSError):
            for child in Path(f"/proc/self/task/{thread}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.02)


def _own_interrupts() -> None:
    """Restore Ctrl-C as a plain `KeyboardInterrupt`.

    PySpark's handler calls Java from inside a call to Java, which fails with a page of tracebacks; stopping the session
    ends its jobs too. py4j's log of an interrupted call is discarded.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


UNPREPARED, PREPARED = 10.5, 6.0
"""Default start times on two cores without and with an archive, seconds."""

_MOST = 1.5
"""Upper bound of the expected start time, as a multiple of the default: a busy machine may have delayed one start."""


def start_seconds(master: str | None, folder: Path | None = None) -> float:
    """Return the expected start time of Spark, seconds.

    Args:
        master: Spark master URL; None for this machine's cores.
        folder: folder of the record; None for beside the archive.
    """
    folder = folder or archive_folder()
    usual = PREPARED if any(folder.glob("*.jsa")) else UNPREPARED
    with suppress(OSError, ValueError, KeyError, TypeError):
        return min(float(orjson.loads(_file(folder).read_bytes())[master or ""]), _MOST * usual)
    return usual


def remember_start(master: str | None, seconds: float, folder: Path | None = None) -> None:
    """Record the duration of a start if the folder is writable.

    A slower start is averaged with the recorded duration.
    """
    folder = folder or archive_folder()
    known: dict[str, float] = {}
    with suppress(OSError, ValueError):
        known = orjson.loads(_file(folder).read_bytes())
    before = start_seconds(master, folder)
    known[master or ""] = round(min(seconds, (seconds + before) / 2), 2)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _file(folder).write_bytes(orjson.dumps(known))


def forget_starts(folder: Path | None = None) -> None:
    """Delete the record, because the start time is about to change."""
    _file(folder or archive_folder()).unlink(missing_ok=True)


def _file(folder: Path) -> Path:
    return folder / "spark-start.json"
