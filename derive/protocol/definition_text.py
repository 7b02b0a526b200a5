"""Definitions of tasks as JSON texts, which a data folder keeps to explain documents and to plan edits.

The text of a derivation has all properties on which published documents depend, without positions in files and limits
of a run. So two catalogs that derive the same documents have the same text in most cases. After an edit without an
effect on documents, such as an edited description, one more text is stored. The text of a materialization is for plans.
"""

from __future__ import annotations

import base64
import hashlib
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.position import Position, Script
from derive.protocol.derive import StoresConfig
from derive.protocol.entry_points import find_runtime
from derive.protocol.secrets import redacted
from derive.protocol.specs import (
    AddressEndpoint,
    CollectionSpec,
    ConnectorEndpoint,
    DerivationSpec,
    FieldsSpec,
    InputSpec,
    LocalEndpoint,
    MaterializationSpec,
)
from derive.recently_used import cached_by_identity

_LEFT_OUT = {"position", "positions", "write_positions", "read_positions", "disabled", "limits"}
"""Fields of specs without an effect on published or stored documents."""

_CONFIG = "connector_config"
_OPAQUE = "opaque"
_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition of a derivation or materialization.

    Attributes:
        digest: digest of the text, hexadecimal.
        text: the definition as JSON.
    """

    digest: str
    text: str


@cached_by_identity
def definition_of(spec: DerivationSpec) -> Definition:
    """Return the definition of a derivation.

    Salts of hashes are secret, so a text has digests of the salts. The configuration of a connector without
    `StoresConfig` cannot be restored.
    """
    written = _write(DerivationSpec, replace(spec, connector_config=None))
    for collection in (written["collection"], *written["sources"].values()):
        if collection["redaction"] is not None:
            collection["redaction"]["salt"] = _salt_digest(collection["redaction"]["salt"])
    kind, config = _config_type(spec.connector), spec.connector_config
    is_plain = kind is not None and isinstance(config, kind)
    written[_CONFIG] = _write(kind, config) if is_plain else {_OPAQUE: repr(config)}
    return _definition(written)


def definition_of_materialization(spec: MaterializationSpec) -> Definition:
    """Return the definition of a materialization, without its collections, and without secrets that are in clear."""
    endpoint = spec.endpoint
    match endpoint:
        case ConnectorEndpoint(image):
            program: dict[str, JSON] = {"image": image}
        case LocalEndpoint(command):
            program = {
                "command": list(command),
                "env": redacted(endpoint.env.written, is_secret=True),
            }
        case AddressEndpoint(address):
            program = {"address": address}
    written = {
        "endpoint": {**program, "config": redacted(endpoint.config.written)},
        "bindings": [
            {
                "input": _write(InputSpec, binding.input),
                "resource": redacted(binding.resource),
                "fields": _write(FieldsSpec, binding.fields),
            }
            for binding in spec.bindings
        ],
        "tick": spec.tick,
    }
    return _definition(written)


@dataclass(frozen=True, slots=True)
class StoredBinding:
    """A binding in the definition of a materialization.

    Attributes:
        input: the input.
        resource: its resource, without secrets that are in clear.
        fields: selected fields.
    """

    input: InputSpec
    resource: JSON
    fields: FieldsSpec


def restored_bindings(text: str) -> dict[str, StoredBinding]:
    """Return the bindings, by name, of a text of `definition_of_materialization`."""
    bindings = [
        StoredBinding(_read(InputSpec, one["input"]), one["resource"], _read(FieldsSpec, one["fields"]))
        for one in parse_exact(text.encode())["bindings"]
    ]
    return {binding.input.name: binding for binding in bindings}


def _definition(written: JSON) -> Definition:
    text = dump_exact(written)
    return Definition(hashlib.sha256(text).hexdigest()[:_DIGITS], text.decode())


def restored(text: str, present: DerivationSpec) -> DerivationSpec | None:
    """Return the derivation that a definition describes.

    Args:
        text: text of the definition.
        present: the derivation as the catalog defines it now, with its limits and its salt.

    Returns:
        The derivation; None if its connector cannot restore configurations, or if its salt is not the present salt.
    """
    if definition_of(present).text == text:
        return present
    written = parse_exact(text.encode())
    config, kind = written.pop(_CONFIG), _config_type(written["connector"])
    if kind is None or (isinstance(config, dict) and _OPAQUE in config):
        return None
    redaction, now = written["collection"]["redaction"], present.collection.redaction
    salt = None if now is None else now.salt
    if redaction is not None and redaction["salt"] != _salt_digest(_write(bytes, salt)):
        return None
    for collection in (written["collection"], *written["sources"].values()):
        if collection["redaction"] is not None:
            collection["redaction"]["salt"] = _write(bytes, salt)
    spec: DerivationSpec = _read(DerivationSpec, {**written, _CONFIG: None})
    return replace(spec, connector_config=_read(kind, config), limits=present.limits)


def collection_text(spec: CollectionSpec) -> str:
    """Return the definition of a collection as JSON, without the redaction that precedes storage."""
    return dump_exact(_write(CollectionSpec, replace(spec, redaction=None))).decode()


@lru_cache(maxsize=64)
def restored_collection(text: str) -> CollectionSpec:
    """Return the collection that a text of `collection_text` describes."""
    spec: CollectionSpec = _read(CollectionSpec, parse_exact(text.encode()))
    return spec


def _salt_digest(salt: str | None) -> str | None:
    return None if salt is None else hashlib.sha256(salt.encode()).hexdigest()[:_DIGITS]


def _config_type(connector: str) -> type | None:
    runtime = find_runtime(connector)
    return runtime.config_type() if isinstance(runtime, StoresConfig) else None


_STORED = Position("(a definition in the data folder)")


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that are in its text."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name not in _LEFT_OUT}


def _write(kind: Any, value: Any) -> Any:
    """Return a value of a type as JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    written = value
    if value is None or kind is Any:
        pass
    elif kind is Script:
        written = value.text
    elif kind is bytes:
        written = base64.b64encode(value).decode()
    elif is_dataclass(kind):
        written = {name: _write(hint, getattr(value, name)) for name, hint in _hints(cast("type", kind)).items()}
    elif origin in (Union, types.UnionType):
        written = _write(_present(arguments), value)
    elif origin is frozenset:
        written = sorted(value)
    elif origin is tuple:
        written = [_write(item_kind, item) for item_kind, item in _items(arguments, value)]
    elif origin is Mapping:
        written = {name: _write(arguments[1], item) for name, item in value.items()}
    return written


def _read(kind: Any, written: Any) -> Any:
    """Return the value of a type that JSON describes, the inverse of `_write`."""
    origin, arguments = get_origin(kind), get_args(kind)
    value = written
    if written is None or kind is Any:
        pass
    elif kind is Script:
        value = Script(written, written, _STORED)
    elif kind is bytes:
        value = base64.b64decode(written)
    elif is_dataclass(kind):
        value = _read_fields(cast("type", kind), written)
    elif origin in (Union, types.UnionType):
        value = _read(_present(arguments), written)
    elif origin is frozenset:
        value = frozenset(written)
    elif origin is tuple:
        value = tuple(_read(item_kind, item) for item_kind, item in _items(arguments, written))
    elif origin is Mapping:
        value = {name: _read(arguments[1], item) for name, item in written.items()}
    return value


def _read_fields(kind: type, written: Mapping[str, Any]) -> Any:
    known = {name: _read(hint, written[name]) for name, hint in _hints(kind).items() if name in written}
    for field in fields(kind):
        if field.name not in known and field.default is MISSING and field.default_factory is MISSING:
            known[field.name] = _STORED  # all other fields without an entry in the text have a default
    return kind(**known)


def _present(arguments: tuple[Any, ...]) -> Any:
    """Return the type in `T | None`; `Any` for a union of JSON's own types."""
    first, *others = (argument for argument in arguments if argument is not type(None))
    return Any if others else first


def _items(arguments: tuple[Any, ...], values: Any) -> list[tuple[Any, Any]]:
    kinds = [arguments[0]] * len(values) if arguments[1:] == (Ellipsis,) else arguments
    return list(zip(kinds, values, strict=True))
