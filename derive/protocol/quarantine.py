"""Quarantines: the collections of the source documents that a derivation has put aside, and of retried documents.

The quarantine of a derivation is written in its transactions. Each transform that puts documents aside also has a
collection of retried documents, which it reads together with its source. No name in a catalog has an `@`, so these
collections have names of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from derive.position import Position
from derive.protocol.collection import CollectionSpec
from derive.schema.projection import Declared, project
from derive.schema.shape import infer

_QUARANTINE, _RETRIED = "@quarantine", "@retried/"

_SCHEMA = {
    "type": "object",
    "required": ["id", "input", "transform", "source", "key", "clock", "error", "document"],
    "properties": {
        "id": {"type": "string", "description": "Identifier of the entry."},
        "input": {"type": "string", "description": "The transform, with the number of its backfill."},
        "transform": {"type": "string"},
        "source": {"type": "string", "description": "Name of the source collection."},
        "key": {"type": "array", "description": "Key of the source document."},
        "clock": {"type": "string", "description": "Time of the source document."},
        "error": {"type": "string"},
        "document": {"type": "object", "description": "The source document."},
    },
}


def quarantine_name(task: str) -> str:
    """Return the name of the quarantine of a derivation.

    >>> quarantine_name("shop/orders")
    'shop/orders@quarantine'
    """
    return task + _QUARANTINE


def retried_name(task: str, state_key: str) -> str:
    """Return the name of the collection of retried documents of one of a derivation's inputs.

    >>> retried_name("shop/orders", "large.v2")
    'shop/orders@retried/large.v2'
    """
    return f"{task}{_RETRIED}{state_key}"


def task_of(name: str) -> str | None:
    """Return the derivation to which a quarantine belongs; None for other collections."""
    return name.removesuffix(_QUARANTINE) if name.endswith(_QUARANTINE) else None


def internal_patterns(task: str) -> tuple[str, str]:
    """Return the name of a derivation's quarantine, and the prefix of its collections of retried documents."""
    return quarantine_name(task), task + _RETRIED


@cache
def quarantine_spec(task: str) -> CollectionSpec:
    """Return the quarantine of a derivation as a collection, partitioned by input."""
    key = ("/id",)
    return CollectionSpec(
        name=quarantine_name(task),
        key=key,
        key_defaults=(None,),
        write_schema=_SCHEMA,
        read_schema=_SCHEMA,
        projections=project(infer(_SCHEMA), key, {"input": Declared("/input", partition=True)}),
        position=Position(quarantine_name(task)),
    )


def retried_specs(task: str, state_keys: Sequence[str], source: CollectionSpec) -> tuple[CollectionSpec, ...]:
    """Return the collections of retried documents that a transform reads besides its source.

    Args:
        task: name of the derivation.
        state_keys: present and former state keys of the transform.
        source: the source of the transform.
    """
    return tuple(replace(source, name=retried_name(task, key)) for key in state_keys)
