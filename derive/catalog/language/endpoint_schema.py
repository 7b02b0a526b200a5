"""The part of a catalog's JSON Schema for captures and materializations."""

from __future__ import annotations

from derive.catalog.language.vocabulary import (
    BOOLEAN,
    DELETE,
    DURATION,
    EXPECT_PUB_ID,
    ON_SOURCE_RESET,
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
    without_effect,
)

_CONFIG: Schema = {
    "description": "What the connector needs to know, or the name of a file that holds it. For a secret write"
    " `${env:NAME}` or `${file:PATH}`.",
    "type": ["string", "object"],
}
_ENDPOINTS: dict[str, Schema] = {
    "connector": record(
        "Connector",
        "A connector, by its image.",
        {"image": text("Name of the image; registry and tag may be left out."), "config": _CONFIG},
        ("image", "config"),
    ),
    "local": record(
        "Local connector",
        "A connector that is a program on this machine, which prints its address when it is ready.",
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
            "protobuf": without_effect({**BOOLEAN, "default": False}),
        },
        ("command", "config"),
    ),
}
_CAPTURED = only_one(
    _ENDPOINTS,
    "E014",
    "'endpoint' names exactly one of 'connector' and 'local'",
    description="The connector to the outside.",
)
ADDRESS: Schema = {
    "type": "string",
    "pattern": r"^[^\s/]+:[0-9]{1,5}$",
    "errorMessage": "an address is a host and a port, such as 'localhost:5000'",
    "x-code": "E713",
}
_MATERIALIZED: Schema = {
    "description": "The connector to the outside: `connector`, `local`, or an `address` with a `config`.",
    "type": "object",
    "properties": {
        **_ENDPOINTS,
        "address": {**ADDRESS, "description": "Where a connector serves gRPC already, such as `localhost:5000`."},
        "config": _CONFIG,
    },
    "additionalProperties": False,
    "oneOf": [
        {"required": ["connector"], "maxProperties": 1},
        {"required": ["local"], "maxProperties": 1},
        {"required": ["address", "config"], "maxProperties": 2},
    ],
    "errorMessage": "'endpoint' is one of 'connector', 'local', and 'address' with a 'config' beside it",
    "x-code": "E014",
}
_RESOURCE: Schema = {
    "description": "What of the endpoint is meant, such as a table; or the name of a file that says so.",
    "type": ["string", "object"],
}
_ON_CHANGE: Schema = without_effect(
    {"enum": ["abort", "backfill", "disableBinding", "disableTask"]},
    "a task whose schema no longer fits stops, and says why",
)
_DISABLE: Schema = {**BOOLEAN, "description": "Leave this binding out.", "default": False}
_BACKFILL: Schema = {**U32, "description": "Raise it to start over.", "default": 0}
_PRIORITY: Schema = {**U32, "description": "Higher priorities come first.", "default": 0}

CAPTURE = record(
    "Capture",
    "Documents that come in from outside. It is kept, and not run here: use `flowctl ingest`.",
    {
        "endpoint": _CAPTURED,
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
        "redactSalt": text("Salt of hashes in redacted documents, in base64; that of the data folder if left out."),
    },
    ("endpoint", "bindings"),
)

_FIELDS = record(
    "Fields",
    "Which fields are materialized.",
    {
        "groupBy": array(
            "Fields that are the key: other names of the collection's, in its order.", text("Name of a field.")
        ),
        "require": entries("Fields that must be, each with settings of the connector.", {}),
        "include": entries("The same as `require`.", {}),
        "exclude": array("Fields that must not be.", text("Name of a field.")),
        "recommended": {
            "description": "Whether to add what the connector recommends, or how many levels deep.",
            "type": ["boolean", "integer"],
            "minimum": 0,
            "default": True,
            "errorMessage": "'recommended' is true, false, or how many levels deep",
            "x-code": "E010",
        },
    },
)

MATERIALIZATION = record(
    "Materialization",
    "Collections that are kept up to date in another system.",
    {
        "endpoint": _MATERIALIZED,
        "source": record(
            "Capture",
            "The capture whose collections are meant. Accepted, and of no effect here: name them in `bindings`.",
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
                    "onSourceReset": ON_SOURCE_RESET,
                    "priority": _PRIORITY,
                    "onIncompatibleSchemaChange": _ON_CHANGE,
                },
                ("resource", "source"),
            ),
        ),
        "onIncompatibleSchemaChange": _ON_CHANGE,
        "shards": shards("10ms"),
        "expectPubId": EXPECT_PUB_ID,
        "delete": DELETE,
        "reset": RESET,
    },
    ("endpoint", "bindings"),
)
