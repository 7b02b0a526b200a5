"""The process that Spark forks its Python workers from: what they need is imported here once, not by each of them."""

from __future__ import annotations

import gc
from importlib.metadata import entry_points

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.protocol.installed import ENTRY_POINTS
from derive.shard import worker

__all__ = ["np", "pd", "pyarrow", "worker"]

if __name__ == "__main__":
    from pyspark.daemon import manager

    for connector in entry_points(group=ENTRY_POINTS):
        connector.load()
    # Documents are trees by the ten thousand, and hold no cycles for the collector to look for.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    manager()
