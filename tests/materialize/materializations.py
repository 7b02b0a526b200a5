"""Materializations of one collection, by the connector of `toy_connector.py`."""

from __future__ import annotations

import sys
from typing import Any

import toy_connector

from derive.position import Position
from derive.protocol.specs import (
    BindingSpec,
    CollectionSpec,
    EndpointConfig,
    FieldsSpec,
    InputSpec,
    LocalEndpoint,
    MaterializationSpec,
)
from derive.schema.projection import Declared, project
from derive.schema.shape import infer

AT = Position("flow.yaml", 2, 3)
CONFIG_AT = Position("flow.yaml", 4, 7)
SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "who": {"type": "string"}, "sum": {"type": "number"}},
}
COLLECTION = CollectionSpec(
    "a/source",
    ("/id",),
    (None,),
    SCHEMA,
    SCHEMA,
    project(infer(SCHEMA), ("/id",), {"part": Declared("/who", partition=True)}),
    AT,
)
TOY = (sys.executable, toy_connector.__file__)


def config(**values: Any) -> EndpointConfig:
    written = {"path": "a.db", **values}
    return EndpointConfig(
        written,
        "/catalog/flow.yaml",
        CONFIG_AT,
        {f"/{name}": Position("flow.yaml", 5 + index, 9) for index, name in enumerate(written)},
    )


def local(folder: str = "/", env: dict[str, str] | None = None, **values: Any) -> LocalEndpoint:
    return LocalEndpoint(TOY, config(**values), AT, EndpointConfig(env or {}, "/catalog/flow.yaml", AT), folder)


def binding(index: int, resource: Any, fields: FieldsSpec | None = None) -> BindingSpec:
    read = InputSpec(index, f"a/source -> {index}", "a/source", AT, priority=3)
    position = Position("flow.yaml", 20 + index, 9)
    return BindingSpec(
        read,
        COLLECTION,
        resource,
        fields or FieldsSpec(position),
        position,
        {"": position, "/table": Position("flow.yaml", 20 + index, 30)},
    )


def materialization(endpoint: Any, *bindings: BindingSpec) -> MaterializationSpec:
    return MaterializationSpec(
        "a/view", endpoint, bindings or (binding(0, {"table": "rows"}),), {"a/source": COLLECTION}, 1_000_000, AT
    )
