"""The process that Spark forks its Python workers from: what they need is imported here once, not by each of them."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.protocol.entry_points import entry_points_of, load_all
from derive.protocol.installed import ENTRY_POINTS
from derive.shard import worker
from derive.shard.collector import spare_documents

__all__ = ["np", "pd", "pyarrow", "worker"]

Work: TypeAlias = Callable[[socket, bool], int]
"""What a worker does for whoever is at the other end of a socket; a code for its process to exit with."""


def unheard(work: Work) -> Work:
    """The same, but for an end without a word where Spark has ended meanwhile, and nobody takes what is answered."""

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
