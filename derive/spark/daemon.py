"""The process that Spark forks its Python workers from: what they need is imported here once, not by each of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.protocol.entry_points import entry_points_of, load_all
from derive.protocol.installed import ENTRY_POINTS
from derive.shard import worker
from derive.shard.collector import spare_documents

__all__ = ["np", "pd", "pyarrow", "worker"]

if __name__ == "__main__":
    from pyspark.daemon import manager

    for connector in entry_points_of(ENTRY_POINTS).values():
        load_all(connector)
    spare_documents()
    manager()
