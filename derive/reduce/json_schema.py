"""The `jsonSchemaMerge` strategy: reduce two JSON Schemas to one that allows the values of both."""

from __future__ import annotations

import jsonschema_rs

from derive.document.pointer import JSON, MISSING
from derive.reduce.reducer import ReductionFailed
from derive.schema.infer import infer
from derive.schema.serialize import serialize
from derive.schema.shape import union


def merge_json_schemas(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the union of two schemas' shapes, as a schema.

    Raises:
        ReductionFailed: a value is not an object that is a JSON Schema.
    """
    for schema in (left, right):
        if schema is not MISSING and not _is_schema(schema):
            raise ReductionFailed("'jsonSchemaMerge' strategy expects objects that are JSON Schemas", left, right)
    return right if left is MISSING else serialize(union(infer(left), infer(right)))


def _is_schema(value: JSON) -> bool:
    # A schema with another or unknown dialect is read in the dialect of all schemas here.
    return type(value) is dict and jsonschema_rs.meta.is_valid({**value, "$schema": _DIALECT})


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
