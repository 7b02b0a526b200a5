"""The process that Spark forks its Python workers from: what they need is imported here once, not by each of them."""

from __future__ import annotations

from importlib.metadata import entry_points

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.protocol.installed import ENTRY_POINTS
from derive.shard import worker
from derive.shard.collector import spare_documents

__all__ = ["np", "pd", "pyarrow", "worker"]

if __name__ == "__main__":
    from pyspark.daemon import manager

    for connector in entry_points(group=ENTRY_POINTS):
        connector.load()
    spare_documents()
    manager()
