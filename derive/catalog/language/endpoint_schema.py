"""The part of the JSON Schema of a catalog that is about its edges: captures and materializations."""

from __future__ import annotations

from derive.catalog.language.vocabulary import (
    BOOLEAN,
    DELETE,
    DURATION,
    EXPECT_PUB_ID,
    RESET,
    U32,
    Schema,
    array,
    entries,
    only_one,
    record,
    ref,
    shards,
    text,
)

_CONFIG: Schema = {
    "description": "What the connector needs to know, or the name of a file that holds it.",
    "type": ["string", "object"],
}
_ENDPOINT = only_one(
    {
        "connector": record(
            "Connector",
            "A connector, by its image.",
            {"image": text("Name of the image."), "config": _CONFIG},
            ("image", "config"),
        ),
        "local": record(
            "Local connector",
            "A connector that is a program on this machine.",
            {
                "command": array(
                    "The program and its arguments.",
                    text("An argument."),
                    minItems=1,
                    errorMessage="a command is an array of the program and its arguments",
                    **{"x-code": "E010"},
                ),
                "config": _CONFIG,
                "env": entries("Environment variables of the program.", text("The value.")),
                "protobuf": {**BOOLEAN, "description": "It speaks protobuf, and JSON otherwise.", "default": False},
            },
            ("command", "config"),
        ),
    },
    "E014",
    "'endpoint' names exactly one of 'connector' and 'local'",
    description="The connector to the outside.",
)
_RESOURCE: Schema = {
    "description": "What of the endpoint is meant, such as a table; or the name of a file that says so.",
    "type": ["string", "object"],
}
_ON_CHANGE: Schema = {
    "description": "What to do if the collection's schema no longer fits.",
    "enum": ["abort", "backfill", "disableBinding", "disableTask"],
}
_DISABLE: Schema = {**BOOLEAN, "description": "Leave this binding out.", "default": False}
_BACKFILL: Schema = {**U32, "description": "Raise it to start over.", "default": 0}
_PRIORITY: Schema = {**U32, "description": "Higher priorities come first.", "default": 0}

CAPTURE = record(
    "Capture",
    "Documents that come in from outside. It is kept, and not run here: use `flowctl ingest`.",
    {
        "endpoint": _ENDPOINT,
        "bindings": array(
            "What is captured into which collection.",
            record(
                "Binding",
                "What is captured into which collection.",
                {
                    "resource": _RESOURCE,
                    "target": text("Name of the collection."),
                    "disable": _DISABLE,
                    "backfill": _BACKFILL,
                },
                ("resource", "target"),
            ),
        ),
        "autoDiscover": record(
            "Discovery",
            "What to do with resources that are new.",
            {
                "addNewBindings": {**BOOLEAN, "description": "Capture them too."},
                "evolveIncompatibleCollections": {**BOOLEAN, "description": "Adapt collections that no longer fit."},
            },
            types=("object", "null"),
        ),
        "interval": {**DURATION, "description": "How often to look for documents."},
        "shards": shards("1s"),
        "expectPubId": EXPECT_PUB_ID,
        "delete": DELETE,
        "reset": RESET,
        "redactSalt": text("Accepted, and of no effect here."),
    },
    ("endpoint", "bindings"),
)

_FIELDS = record(
    "Fields",
    "Which fields are materialized.",
    {
        "groupBy": array("Fields that are the key.", text("Name of a field.")),
        "require": entries("Fields that must be, each with settings of the connector.", {}),
        "include": entries("The former name of `require`.", {}),
        "exclude": array("Fields that must not be.", text("Name of a field.")),
        "recommended": {"description": "Whether to add what the connector recommends, or to what depth."}
        | {"type": ["boolean", "integer"]},
    },
)

MATERIALIZATION = record(
    "Materialization",
    "Collections that are kept up to date in another system.",
    {
        "endpoint": _ENDPOINT,
        "source": record(
            "Capture",
            "The capture whose collections are all bound.",
            {
                "capture": text("Name of the capture."),
                "targetNaming": text("How resources are named."),
                "deltaUpdates": {**BOOLEAN, "description": "Append documents instead of replacing rows."},
                "fieldsRecommended": {"type": ["boolean", "integer"], "description": "As in a binding's `fields`."},
            },
            types=("string", "object"),
        ),
        "bindings": array(
            "What is materialized, and where.",
            record(
                "Binding",
                "A collection, and where it goes.",
                {
                    "resource": _RESOURCE,
                    "source": ref("source"),
                    "fields": _FIELDS,
                    "disable": _DISABLE,
                    "backfill": _BACKFILL,
                    "priority": _PRIORITY,
                    "onIncompatibleSchemaChange": _ON_CHANGE,
                },
                ("resource", "source"),
            ),
        ),
        "onIncompatibleSchemaChange": _ON_CHANGE,
        "shards": shards("5m"),
        "expectPubId": EXPECT_PUB_ID,
        "delete": DELETE,
        "reset": RESET,
    },
    ("endpoint", "bindings"),
)
