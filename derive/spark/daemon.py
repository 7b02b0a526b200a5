"""The process from which Spark forks its Python workers: it imports their modules once."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.protocol.entry_points import ENTRY_POINTS, entry_points_of, load_all
from derive.shard import worker
from derive.shard.worker import spare_documents

__all__ = ["np", "pd", "pyarrow", "worker"]

Work: TypeAlias = Callable[[socket, bool], int]
"""Function of a worker for the peer of a socket; returns the exit code of its process."""


def unheard(work: Work) -> Work:
    """Return the same function, but exit silently if Spark has ended and nothing can read the answer."""

    def attempt(sock: socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1

    return attempt


if __name__ == "__main__":
    from pyspark import daemon

    daemon.worker = unheard(daemon.worker)  # type: ignore[assignment]
    for connector in entry_points_of(ENTRY_POINTS).values():
        load_all(connector)
    spare_documents()
    daemon.manager()
