"""Parquet that Spark writes: its times are INT96 by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from derive.protocol.specs import CatalogSpec
from derive.spark.executor import SparkExecutor
from derive.storage.inputs.parquet_rows import parquet_rows

CATALOG = """
collections:
  p/rows: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}
"""
QUERY = """
SELECT timestamp_micros(253402300799999999) AS last, timestamp_micros(-62135596800000000) AS first,
       array(timestamp_micros(253402300799000000), NULL) AS list, named_struct('t', timestamp_micros(0)) AS struct,
       map('far', timestamp_micros(32503680000000000)) AS map
"""


@pytest.mark.spark
def test_times_that_spark_writes_are_read(
    spark: SparkExecutor, catalog_of: Callable[..., CatalogSpec], tmp_path: Path
) -> None:
    session, folder = spark.session, tmp_path / "written"
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        session.sql(QUERY).coalesce(1).write.parquet(str(folder))
    finally:
        session.conf.unset("spark.sql.parquet.outputTimestampType")
    (path,) = folder.glob("*.parquet")

    assert list(parquet_rows(str(path), catalog_of(CATALOG).collections["p/rows"])) == [
        (
            1,
            {
                "last": "9999-12-31T23:59:59.999999000",
                "first": "0001-01-01T00:00:00.000000000",
                "list": ["9999-12-31T23:59:59.000000000", None],
                "struct": {"t": "1970-01-01T00:00:00.000000000"},
                "map": {"far": "3000-01-01T00:00:00.000000000"},
            },
        )
    ]
