"""What is wrong with a schema that compiles: it asks for what it forbids, or has a default that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from derive.document.exact import dump_exact
from derive.document.pointer import JSON, escape
from derive.schema.dialect import subschemas
from derive.schema.shape import Shape
from derive.schema.validator import compile_part


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a schema.

    Attributes:
        kind: `impossible` if a location must exist and has no valid value, `default` if a default is not valid.
        pointer: JSON pointer: of the location in documents if impossible, else of the keyword in the schema.
        message: what is wrong.
    """

    kind: Literal["impossible", "default"]
    pointer: str
    message: str


def inspect(schema: JSON, shape: Shape, *, name: str) -> list[Fault]:
    """What is wrong with a self-contained schema.

    Args:
        schema: compiles.
        shape: its shape.
        name: of the collection, for messages.
    """
    impossible = [
        Fault("impossible", pointer, f"'{pointer}' must exist, but no value of it is valid")
        for pointer in _impossible(shape, "")
    ]
    return impossible + list(_invalid_defaults(schema, name))


def _impossible(shape: Shape, pointer: str) -> Iterator[str]:
    children = [(escape(name), each, name in shape.required) for name, each in shape.properties.items()]
    children += [(str(place), each, place < shape.min_items) for place, each in enumerate(shape.prefix)]
    for token, child, must in children:
        if must and not child.types:
            yield f"{pointer}/{token}"
        yield from _impossible(child, f"{pointer}/{token}")
    least = len(shape.prefix)
    if shape.min_items > least and shape.items is not None and not shape.items.types:
        yield f"{pointer}/{least}"


def _invalid_defaults(schema: JSON, name: str) -> Iterator[Fault]:
    for pointer, each in subschemas(schema):
        if "default" in each and not compile_part(schema, pointer, name=name)(each["default"]):
            shown = dump_exact(each["default"]).decode()[:200]
            yield Fault("default", f"{pointer}/default", f"the default {shown} is not valid under its own schema")
