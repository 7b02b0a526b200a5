"""The process that Spark forks its Python workers from: what they need is imported here once, not by each of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.compute
import pyarrow.parquet

from derive.engine import worker

__all__ = ["np", "pd", "pyarrow", "worker"]

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
