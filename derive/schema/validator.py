"""Validation of documents, in Rust, with errors a person can use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import orjson

from derive.document.pointer import JSON, escape
from derive.errors import SchemaError, SchemaViolation

_INTEGER = re.compile(r"-?\d+", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FORMATS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: not isinstance(value, str) or _INTEGER.fullmatch(value) is not None,
    "number": lambda value: not isinstance(value, str) or _is_number(value),
}
_SHOWN = 200
_WHOLE = "schema://derive/"  # has a path, so that a relative `$id` resolves


def _is_number(text: str) -> bool:
    return text in ("NaN", "Infinity", "-Infinity") or _NUMBER.fullmatch(text) is not None


class Validator:
    """A compiled JSON Schema (draft 2020-12; formats are asserted, unknown keywords are annotations).

    Attributes:
        is_valid: whether a document is valid; the Rust function itself, as this is called for every document.
    """

    __slots__ = ("_name", "_validator", "is_valid")

    def __init__(self, schema: JSON, name: str) -> None:
        self._name = name
        try:
            self._validator = jsonschema_rs.Draft202012Validator(schema, formats=_FORMATS, validate_formats=True)
        except (ValueError, jsonschema_rs.ValidationError) as exc:
            raise SchemaError(f"the schema of '{name}' is not a JSON Schema: {_reason(exc)}") from exc
        self.is_valid: Callable[[JSON], bool] = self._validator.is_valid

    def violation(self, document: JSON, *, key: str = "") -> SchemaViolation:
        """The error for an invalid document.

        Args:
            document: fails the schema.
            key: its key, as JSON text, for the message.
        """
        error = min(self._validator.iter_errors(document), key=lambda each: len(list(each.instance_path)), default=None)
        named = f" {key}" if key else ""
        if error is None:
            return SchemaViolation(f"document{named} of '{self._name}' is not valid")
        location = "".join(f"/{escape(str(token))}" for token in error.instance_path)
        keyword = "/".join(str(each) for each in error.schema_path)
        message = str(error.message)
        shown = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
        return SchemaViolation(
            f"document{named} of '{self._name}' fails its schema at '{location}': {shown} (keyword /{keyword})"
        )


def _reason(exc: Exception) -> str:
    """What is wrong with a schema, in one line, with its place."""
    if not isinstance(exc, jsonschema_rs.ValidationError):
        return str(exc)
    place = "".join(f"/{escape(str(token))}" for token in exc.instance_path)
    return f"at '{place}', {exc.message}"


_compiled: dict[tuple[str, bytes], Validator] = {}


def compile_validator(schema: JSON, *, name: str) -> Validator:
    """The validator of a schema.

    Args:
        schema: self-contained JSON Schema.
        name: of the collection, for messages.

    Raises:
        SchemaError: it is not a JSON Schema.
    """
    identity = (name, orjson.dumps(schema))
    found = _compiled.get(identity)
    if found is None:
        found = _compiled[identity] = Validator(schema, name)
    return found


def compile_part(schema: JSON, pointer: str, *, name: str) -> Callable[[JSON], bool]:
    """Whether a value is valid under one part of a schema, whose references resolve in the whole.

    Args:
        schema: the whole, self-contained JSON Schema.
        pointer: JSON pointer of the part.
        name: of the collection, for messages.

    Raises:
        SchemaError: it is not a JSON Schema.
    """
    reference = {"$ref": f"{_WHOLE}#{quote(pointer, safe='/~')}"}
    try:
        registry = jsonschema_rs.Registry([(_WHOLE, schema)])
        part = jsonschema_rs.Draft202012Validator(reference, formats=_FORMATS, validate_formats=True, registry=registry)
    except (ValueError, jsonschema_rs.ValidationError) as exc:
        raise SchemaError(f"the schema of '{name}' is not a JSON Schema: {_reason(exc)}") from exc
    return part.is_valid
