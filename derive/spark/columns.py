"""Columns in Spark's schema language."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_TYPES = {pa.int8(): "byte", pa.int32(): "int", pa.int64(): "long", pa.binary(): "binary", pa.string(): "string"}


def spark_columns(schema: pa.Schema, names: Sequence[str] | None = None) -> str:
    """Return the columns of an Arrow schema, all or those with these names, in Spark's schema language."""
    fields = schema if names is None else map(schema.field, names)
    return ", ".join(f"{field.name} {_TYPES[field.type]}" for field in fields)
