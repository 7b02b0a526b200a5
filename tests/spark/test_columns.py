"""Columns in Spark's own language."""

from __future__ import annotations

from derive.shard.owners import PACKETS
from derive.spark.executor import spark_columns
from derive.storage.segments.rows import StoredRows


def test_columns_of_segments_and_packets_have_types_that_spark_knows() -> None:
    assert spark_columns(StoredRows.SCHEMA) == "clock long, seq int, diff byte, key binary, doc string"
    assert spark_columns(StoredRows.SCHEMA, ["key", "doc"]) == "key binary, doc string"
    assert spark_columns(PACKETS) == "owner int, rank long, content binary"
