"""Unfit workers: machines of a cluster without the data folder, Python, or this package.

A second attempt on such a machine would fail too, so the run stops and names the host and the cause.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from derive.errors import WorkerError
from derive.shard.stages import Stage
from derive.storage.folder_id import FILE

_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")
_OURS = re.compile(rf"{WorkerError.__name__}: (.*)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']*)'")
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*)")

_SHARE = "every machine of the cluster must have the data folder under the same path"
_INSTALL = "install this package there, and name its Python by the environment variable PYSPARK_PYTHON of the run"


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
        WorkerError: the worker has no data folder at that path, or another one.
    """
    if identifier:
        _require_folder(root, identifier)
    return stage(number, packets, attempt)


def _require_folder(root: Path, identifier: str) -> None:
    try:
        own = (root / FILE).read_text()
    except OSError as exc:
        raise WorkerError(_unseen(root, exc.strerror or str(exc))) from exc
    if own != identifier:
        raise WorkerError(_unseen(root, "another data folder is there"))


def _unseen(root: Path, cause: str) -> str:
    return f"a Spark worker on host {socket.gethostname()} cannot see the data folder {root}: {cause}"


def find_unfit(text: str) -> WorkerError | None:
    """Return the error of an unfit worker that Spark's message describes; None for other failures.

    Args:
        text: message of Spark's exception.
    """
    match = _HOST.search(text)
    host = f"on host {match[1]}" if match else "of the cluster"
    if match := _OURS.search(text):
        return WorkerError(match[1].strip(), hint=_SHARE)
    if match := _NO_PROGRAM.search(text):
        return WorkerError(
            f"the Spark worker {host} cannot start Python: there is no program {match[1]}", hint=_INSTALL
        )
    if match := _NO_MODULE.search(text):
        return WorkerError(f"the Python of the Spark worker {host} has no module '{match[1]}'", hint=_INSTALL)
    if match := _OTHER_PYTHON.search(text):
        return WorkerError(f"the Spark worker {host} has another version of Python: {match[1].strip()}", hint=_INSTALL)
    return None
