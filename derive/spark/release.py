"""The release of this package on a machine: a worker with another release would compute other documents, or fail.

A stage is sent as bytes, with a function that is sent as code. So the function compares the releases before it opens
the bytes, whose classes another release may lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from derive.shard.worker import Stage


@cache
def release() -> tuple[str, str]:
    """Return the version of this package, and a digest of the names and sizes of its modules.

    The digest is empty for a package that is no folder, such as an archive that Spark sends to workers.
    """
    from importlib.metadata import version

    folder = Path(__file__).parents[1]
    modules = sorted((str(file.relative_to(folder)), file.stat().st_size) for file in folder.rglob("*.py"))
    return version("derive-flow"), hashlib.sha256(repr(modules).encode()).hexdigest()[:12] if modules else ""


def packed(stage: Stage, own: tuple[str, str] | None) -> Callable[[], Stage]:
    """Return a function that opens a stage on a worker.

    Args:
        stage: the stage.
        own: release of this machine; None for workers on this machine, which have its files.

    Raises:
        WorkerError: raised by the function, if the worker has another release of this package.
    """
    from pyspark import cloudpickle

    sent: bytes = cloudpickle.dumps(stage)  # type: ignore[no-untyped-call]

    def opened() -> Stage:
        import pickle
        import socket

        from derive.errors import WorkerError

        if own is not None:
            try:
                from derive.spark.release import release

                there = release()
            except ImportError:
                there = "an older one", ""
            if there[0] != own[0] or ("" not in (there[1], own[1]) and there[1] != own[1]):
                where = (
                    f"a Spark worker on host {socket.gethostname()} has another release of this package than the run"
                )
                raise WorkerError(f"{where}: {' '.join(there).strip()}, and not {' '.join(own).strip()}")
        unpacked: Stage = pickle.loads(sent)
        return unpacked

    return opened
