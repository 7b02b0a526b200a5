"""Validate documents in Rust, with errors for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn
from urllib.parse import quote

import jsonschema_rs

from derive.document.exact import dump_exact
from derive.document.pointer import JSON, escape
from derive.errors import SchemaError, SchemaViolation
from derive.position import Position
from derive.schema.dialect import has_redactions, subschemas
from derive.schema.formats import FORMATS, KEYWORD_OF, KEYWORDS, standard

_SHOWN = 200
_MASK = "the value"
"""Replaces values in errors of a schema with redactions: a misplaced value may be a redacted one."""

_WHOLE = "schema://derive/"  # a path in the URL, so that a relative `$id` resolves
_AnyOf, _OneOf = jsonschema_rs.ValidationErrorKind.AnyOf, jsonschema_rs.ValidationErrorKind.OneOfNotValid
_OTHER_NAMES = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.UnevaluatedProperties,
)
_Type = jsonschema_rs.ValidationErrorKind.Type
_QUOTE_NULL = 'in YAML, the name of the type must be quoted: "null"'


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Texts of numbers that JSON does not have."""

_NOT_FINITE = (
    "JSON has no number for this one, which SQL and lambdas write as a text; where it may be, say"
    " 'type: [number, string]' and 'format: number'"
)


class Validator:
    """A compiled JSON Schema of draft 2020-12 and `derive.schema.formats`.

    Formats are asserted, and unknown keywords are annotations (`derive.schema.dialect` finds misspelt ones).

    Attributes:
        is_valid: returns true for a valid document; the Rust function itself, because it is called for every document.
    """

    __slots__ = ("_name", "_named", "_validator", "is_valid")

    def __init__(self, schema: JSON, name: str) -> None:
        self._name = name
        self._named = _names_in(schema) if has_redactions(schema) else None
        self._validator = _compile(schema, name)
        self.is_valid: Callable[[JSON], bool] = self._validator.is_valid

    def violation(
        self, document: JSON, *, key: str = "", positions: Mapping[str, Position] | None = None
    ) -> SchemaViolation:
        """Return the error for an invalid document: the violation nearest to the document's root.

        Args:
            document: the invalid document.
            key: its key, as JSON text, for the message.
            positions: positions of the schema's parts, by JSON pointer. The error has the position of the violated
                keyword, or of the nearest part around it.
        """
        errors = list(self._validator.iter_errors(document))
        named = f" {key}" if key else ""
        if not errors:
            return SchemaViolation(f"document{named} of '{self._name}' is not valid")
        error = _cause(_first(errors))
        keyword = _pointer(KEYWORD_OF.get(str(token), token) for token in error.schema_path)
        message, path = str(error.message), error.instance_path
        if self._named is not None:  # the name of another property may be a value that is not to be shown
            path = [token if isinstance(token, int) or token in self._named else "*" for token in path]
            if isinstance(error.kind, _OTHER_NAMES):
                message = message.partition(" (")[0]
            elif "propertyNames" in error.schema_path:
                message = "the name of a property is not valid"
        shown = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
        return SchemaViolation(
            f"document{named} of '{self._name}' fails its schema at '{_pointer(path)}': {shown} (keyword {keyword})",
            position=_nearest(keyword, positions or {}),
            hint=_NOT_FINITE if keyword.endswith("/type") and error.instance in NOT_FINITE else None,
        )


def _names_in(schema: JSON) -> frozenset[str]:
    """Return the names of properties that a schema itself has."""
    return frozenset(name for _, part in subschemas(schema) for name in part.get("properties", ()))


def _first(errors: list[jsonschema_rs.ValidationError]) -> jsonschema_rs.ValidationError:
    return min(errors, key=lambda error: len(error.instance_path))


def _cause(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error of the intended alternative, if only one of several matches the value's type."""
    while isinstance(error.kind, _AnyOf | _OneOf):
        location = error.instance_path
        fitting = [
            errors
            for errors in error.kind.context
            if not any(isinstance(other.kind, _Type) and other.instance_path == location for other in errors)
        ]
        if len(fitting) != 1:
            break
        error = _first(fitting[0])
    return error


def _pointer(tokens: Iterable[str | int]) -> str:
    return "".join(f"/{escape(str(token))}" for token in tokens)


def _nearest(pointer: str, positions: Mapping[str, Position]) -> Position | None:
    while pointer and pointer not in positions:
        pointer = pointer.rpartition("/")[0]
    return positions.get(pointer)


def _compile(
    schema: JSON, name: str, registry: jsonschema_rs.Registry | None = None
) -> jsonschema_rs.Draft202012Validator:
    try:
        return jsonschema_rs.Draft202012Validator(
            standard(schema),
            formats=FORMATS,
            validate_formats=True,
            keywords=KEYWORDS,
            registry=registry,
            retriever=_refuse,
            mask=_MASK if has_redactions(schema) else None,
        )
    except (ValueError, jsonschema_rs.ValidationError) as exc:
        hint = _QUOTE_NULL if _has_bare_null(exc) else None
        raise SchemaError(f"the schema of '{name}' is not a JSON Schema: {_reason(exc)}", hint=hint) from exc


def _refuse(url: str) -> NoReturn:
    raise ValueError(f"nothing is fetched from {url} to validate documents")


def _reason(exc: Exception) -> str:
    """Return the fault of a schema and its location, in one line."""
    message = getattr(exc, "message", str(exc)).partition("\n")[0]
    if not isinstance(exc, jsonschema_rs.ValidationError):
        return message
    return f"at '{_pointer(exc.instance_path)}', {message}"


def _has_bare_null(exc: Exception) -> bool:
    if not isinstance(exc, jsonschema_rs.ValidationError) or exc.instance_path[-1:] != ["type"]:
        return False
    return exc.instance is None or (isinstance(exc.instance, list) and None in exc.instance)


_compiled: dict[tuple[str, bytes], Validator] = {}


def is_schema(schema: JSON) -> bool:
    """Return true if the keywords of a schema have valid values; `compile_validator` reports the fault."""
    return bool(jsonschema_rs.meta.is_valid(standard(schema)))


def compile_validator(schema: JSON, *, name: str) -> Validator:
    """Return the validator of a schema.

    Args:
        schema: self-contained JSON Schema.
        name: name of the collection, for messages.

    Raises:
        SchemaError: the schema is not a valid JSON Schema.
    """
    identity = (name, dump_exact(schema))
    validator = _compiled.get(identity)
    if validator is None:
        validator = _compiled[identity] = Validator(schema, name)
    return validator


def compile_part(schema: JSON, pointer: str, *, name: str) -> Callable[[JSON], bool]:
    """Return a function that validates a value against one part of a schema.

    Args:
        schema: the whole self-contained JSON Schema.
        pointer: JSON pointer of the part.
        name: name of the collection, for messages.

    Raises:
        SchemaError: the schema is not a valid JSON Schema.
    """
    try:
        registry = jsonschema_rs.Registry([(_WHOLE, standard(schema))])
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise SchemaError(f"the schema of '{name}' is not a JSON Schema: {_reason(exc)}") from exc
    return _compile({"$ref": f"{_WHOLE}#{quote(pointer, safe='/~')}"}, name, registry).is_valid
