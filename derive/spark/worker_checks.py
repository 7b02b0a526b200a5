"""Checks of workers: each machine of a cluster must have what the stages of a transaction need.

A worker that lacks the data folder, the segments, Python, a library or this release of the package raises an error with
its host and the reason. A second attempt on the same machine would fail too, so the run stops.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa

from derive.errors import StorageError, TaskError, UnreachableError, UnseenFolderError, UsageError, WorkerError
from derive.protocol.derive import ShipsLibraries
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.shard.worker import Stage
from derive.storage.folder_id import FILE
from derive.storage.location import ObjectFolder, require_claimed

_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")
_OURS = re.compile(rf"({WorkerError.__name__}|{UnseenFolderError.__name__}): (.*)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']*)'")
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*)")

_SHARE = (
    "every machine of the cluster must have the data folder under the same path; or keep segments in an object store,"
    " and states on local disks: flowctl run --state-cache DIR"
)
_INSTALL = (
    "install this package on the worker, and set PYSPARK_PYTHON in the environment of the run to its Python; or send an"
    " archive with both: flowctl environment pack"
)
_SAME = "install the same release of this package on all machines of the cluster"


def in_folder(
    stage: Stage, root: Path, identifier: str, number: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    """Run a task of a stage on a worker, after a check of the data folder.

    Args:
        stage: the stage.
        root: the data folder.
        identifier: identifier of the data folder; empty to skip the check.
        number: as for `Stage`.
        packets: as for `Stage`.
        attempt: as for `Stage`.

    Raises:
        UnseenFolderError: the worker has no data folder at `root`, or a folder with another identifier.
    """
    if identifier:
        _require_folder(root, identifier)
    return stage(number, packets, attempt)


def _require_folder(root: Path, identifier: str) -> None:
    try:
        own = (root / FILE).read_text()
    except OSError as exc:
        raise _unseen(root, exc.strerror or str(exc)) from exc
    if own != identifier:
        raise _unseen(root, "this path holds another data folder")


def at_location(
    stage: Stage, location: ObjectFolder, identifier: str, number: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    """Run a task of a stage on a worker that can read the segments of a data folder in an object store.

    Args:
        stage: the stage.
        location: location of the segments.
        identifier: identifier of the data folder.
        number: as for `Stage`.
        packets: as for `Stage`.
        attempt: as for `Stage`.

    Raises:
        WorkerError: the worker may not read there, or the segments are those of another data folder.
    """
    _require_location(location, identifier)
    return stage(number, packets, attempt)


@cache
def _require_location(location: ObjectFolder, identifier: str) -> None:
    """Raise an error unless this process reads the segments of the data folder; it is checked once."""
    try:
        require_claimed(location, identifier)
    except UnreachableError:
        return  # the stage reports it, and the run tries again
    except (StorageError, UsageError) as exc:
        host = socket.gethostname()
        raise WorkerError(f"a Spark worker on host {host} cannot read the segments at {location}: {exc}") from exc


def with_libraries(
    stage: Stage, spec: DerivationSpec, archive: str, number: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    """Run a task of a stage on a worker that has the libraries of a derivation.

    Args:
        stage: the stage.
        spec: the derivation.
        archive: name of the archive of its libraries among the files that Spark sends to workers.
        number: as for `Stage`.
        packets: as for `Stage`.
        attempt: as for `Stage`.

    Raises:
        WorkerError: the machine of the worker cannot use the libraries.
    """
    from pyspark import SparkFiles

    runtime = find_runtime(spec.connector)
    assert isinstance(runtime, ShipsLibraries)
    try:
        runtime.unpack_libraries(spec, Path(SparkFiles.get(archive)))
    except (TaskError, OSError) as exc:
        message = f"a Spark worker on host {socket.gethostname()} cannot use the libraries of '{spec.name}': {exc}"
        raise WorkerError(message) from exc
    return stage(number, packets, attempt)


def _unseen(root: Path, cause: str) -> UnseenFolderError:
    return UnseenFolderError(
        f"a Spark worker on host {socket.gethostname()} cannot see the data folder {root}: {cause}"
    )


def find_unfit(text: str) -> WorkerError | None:
    """Return the error of an unfit worker if Spark's message describes one; None for other failures.

    A second attempt on the same machine would fail too, so the run stops and names the host and the cause.

    Args:
        text: message of Spark's exception.
    """
    match = _HOST.search(text)
    host = f"on host {match[1]}" if match else "of the cluster"
    if match := _OURS.search(text):
        kind, message = match[1], match[2].strip()
        if kind == UnseenFolderError.__name__:
            return UnseenFolderError(message, hint=_SHARE)
        return WorkerError(message, hint=_SAME if "another release" in message else None)
    if match := _NO_PROGRAM.search(text):
        return WorkerError(
            f"the Spark worker {host} cannot start Python: there is no program {match[1]}", hint=_INSTALL
        )
    if match := _NO_MODULE.search(text):
        return WorkerError(f"the Python of the Spark worker {host} has no module '{match[1]}'", hint=_INSTALL)
    if match := _OTHER_PYTHON.search(text):
        return WorkerError(
            f"the Spark worker {host} has another version of Python than this run: {match[1].strip()}", hint=_INSTALL
        )
    return None
