"""Validate documents in Rust, with errors for people and formats beyond JSON Schema; fingerprints of schemas."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from decimal import Decimal
from typing import Any, NoReturn
from urllib.parse import quote

import jsonschema_rs

from derive.document.exact import TOO_DEEP, dump_exact
from derive.document.pointer import JSON, escape
from derive.errors import SchemaError, SchemaViolation
from derive.position import Position
from derive.schema.dialect import has_redactions, schemas_in
from derive.schema.shape import type_of

_VALIDATOR = b"1 "
"""Version of the validator; with a new version, all stored documents are validated again."""


def fingerprint(schema: JSON) -> str:
    """Return a text that is equal for equal schemas only."""
    return hashlib.sha256(_VALIDATOR + dump_exact(schema)).hexdigest()


_INTEGER = re.compile(r"-?\d+(\.0+)?", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FRACTIONAL = "x-derive-fractional"


def is_number(text: str) -> bool:
    """Return true if a text is a number of any size and precision, or `NaN`, `Infinity` or `-Infinity`."""
    return text in ("NaN", "Infinity", "-Infinity") or _NUMBER.fullmatch(text) is not None


_BYTE = "(?:[0-9A-Fa-f]{2})"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def _address(size: int) -> re.Pattern[str]:
    """Return a pattern of hardware addresses with this number of bytes, in PostgreSQL's input formats."""
    pairs = size // 2
    forms = [
        *(f"{_BYTE}(?:{sign}{_BYTE}){{{size - 1}}}" for sign in ":-"),
        f"{_BYTE}{{2}}(?:\\.{_BYTE}{{2}}){{{pairs - 1}}}",
        *(f"{_BYTE}{{3}}{sign}{_BYTE}{{{size - 3}}}" for sign in ":-"),
        f"{_BYTE}{{{size}}}",
    ]
    return re.compile("|".join(f"(?:{form})" for form in forms), re.ASCII)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, str) or pattern.fullmatch(value) is not None


FORMATS: dict[str, Callable[[Any], bool]] = {
    "integer": _matches(_INTEGER),
    "macaddr": _matches(_address(6)),
    "macaddr8": _matches(_address(8)),
    "sha256": _matches(_SHA256),
    "number": lambda value: not isinstance(value, str) or is_number(value),
}
"""Checks of formats by name; the formats of the draft are built into the validator."""

ASSERTED = frozenset(
    {
        *FORMATS, "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6",
        "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference",
        "uri-template", "uuid",
    }
)  # fmt: skip
"""Formats that are assertions; other formats are annotations."""


class Fractional:
    """The keyword that replaces `type: fractional`: numbers that are not integers."""

    def __init__(self, _schema: JSON, _value: JSON, _path: list[str | int]) -> None: ...

    def validate(self, instance: JSON) -> None:
        """Refuse an integer, written as 1 or as 1.0.

        Raises:
            ValueError: the value is an integer.
        """
        if type_of(instance) == "integer":
            raise ValueError(f'{instance} is not of type "fractional"')


class _TextBound:
    """A bound of numbers that are written as text; other values are ignored."""

    sign = 0
    fault = ""

    def __init__(self, _schema: JSON, value: JSON, _path: list[str | int]) -> None:
        text = str(value)
        if isinstance(value, bool) or not is_number(text) or text == "NaN":
            raise ValueError(f"{value!r} is not a number")
        self._bound = Decimal(text)

    def validate(self, instance: JSON) -> None:
        """Refuse a text that is a number beyond the bound.

        Raises:
            ValueError: the value is beyond the bound.
        """
        if not isinstance(instance, str) or not is_number(instance) or instance == "NaN":
            return
        if self.sign * Decimal(instance).compare(self._bound) > 0:
            raise ValueError(f'"{instance}" is {self.fault} {self._bound}')


class TextMinimum(_TextBound):
    """`x-str-minimum`: the least permitted numeric text."""

    sign = -1
    fault = "less than the minimum of"


class TextMaximum(_TextBound):
    """`x-str-maximum`: the greatest permitted numeric text."""

    sign = 1
    fault = "greater than the maximum of"


KEYWORDS: dict[str, type[Any]] = {
    _FRACTIONAL: Fractional,
    "x-str-minimum": TextMinimum,
    "x-str-maximum": TextMaximum,
}
"""Implementations of own keywords, by name."""

KEYWORD_OF = {_FRACTIONAL: "type"}
"""Written keyword of each own keyword that replaces one."""


def standard(schema: JSON) -> JSON:
    """Return the schema without `type: fractional`, which no meta-schema knows; the same object if it has none."""
    if not any("fractional" in _types(subschema) for subschema in schemas_in(schema)):
        return schema
    copied = deepcopy(schema)
    for subschema in schemas_in(copied):
        types = _types(subschema)
        if "fractional" in types:
            subschema["type"] = [*(kind for kind in types if kind not in ("fractional", "integer", "number")), "number"]
            if "integer" not in types and "number" not in types:
                subschema[_FRACTIONAL] = True
    return copied


def _types(schema: dict[str, JSON]) -> list[JSON]:
    named = schema.get("type")
    return named if isinstance(named, list) else [named]


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
_Format = jsonschema_rs.ValidationErrorKind.Format
_EXAMPLES = {"date": "2024-05-01", "date-time": "2024-05-01T09:00:00Z", "duration": "P1DT2H", "time": "09:00:00Z"}
"""Valid values of formats of times, which have several common forms."""
_QUOTE_NULL = 'in YAML, the name of the type must be quoted: "null"'


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Texts of numbers that JSON does not have."""

_NOT_FINITE = (
    "JSON has no such number, which SQL and lambdas write as a text; to permit the text, write"
    " 'type: [number, string]' and 'format: number'"
)


class Validator:
    """A compiled JSON Schema of draft 2020-12 and `derive.schema.validator`.

    Formats are asserted, and unknown keywords are annotations (`derive.schema.dialect` finds misspelt keywords).

    Attributes:
        is_valid: returns true for a valid document; the Rust function itself, because it is called for every document.
    """

    __slots__ = ("_name", "_named", "_validator", "is_valid")

    def __init__(self, schema: JSON, name: str) -> None:
        self._name = name
        is_redacted = has_redactions(schema)
        self._named = _names_in(schema) if is_redacted else None
        self._validator = _compile(schema, name, mask=_MASK if is_redacted else None)
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
        named = f" {key}" if key else ""
        try:
            errors = list(self._validator.iter_errors(document))
        except ValueError as exc:  # an error has a copy of its value, which is limited to 255 levels
            if "Recursion limit" not in str(exc):
                raise
            return SchemaViolation(f"document{named} of '{self._name}' is not valid, and {TOO_DEEP}")
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
        if isinstance(error.kind, _Format) and error.kind.format in _EXAMPLES:
            shown += f", such as {_EXAMPLES[error.kind.format]}"
        place = f" at '{_pointer(path)}'" if path else ""
        return SchemaViolation(
            f"document{named} of '{self._name}' fails its schema{place}: {shown} (keyword {keyword})",
            position=_nearest(keyword, positions or {}),
            hint=_NOT_FINITE if keyword.endswith("/type") and error.instance in NOT_FINITE else None,
        )


def _names_in(schema: JSON) -> frozenset[str]:
    """Return the names of properties that a schema itself has."""
    return frozenset(name for part in schemas_in(schema) for name in part.get("properties", ()))


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
    schema: JSON, name: str, *, registry: jsonschema_rs.Registry | None = None, mask: str | None = None
) -> jsonschema_rs.Draft202012Validator:
    try:
        return jsonschema_rs.Draft202012Validator(
            standard(schema),
            formats=FORMATS,
            validate_formats=True,
            keywords=KEYWORDS,
            registry=registry,
            retriever=_refuse,
            mask=mask,
        )
    except (ValueError, jsonschema_rs.ValidationError) as exc:
        hint = _QUOTE_NULL if _has_bare_null(exc) else None
        raise SchemaError(f"the schema of '{name}' is not a JSON Schema: {_reason(exc)}", hint=hint) from exc


def _refuse(url: str) -> NoReturn:
    raise ValueError(f"the reference to {url} cannot be resolved, because validation loads no URL")


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
    return _compile({"$ref": f"{_WHOLE}#{quote(pointer, safe='/~')}"}, name, registry=registry).is_valid
