"""The JSON Schema of `flow.yaml`, the single description of a catalog's syntax, and its building blocks.

Editors complete, explain and check catalogs with the schema, and the loader rejects the same files. Each fault is
reported at its own position. So a definition for a string or an object has `type: [string, object]` with constraints
for both, because `oneOf` would only report that neither matches.

Two additional keywords have the message and the code of a fault: `errorMessage`, which editors also show, and `x-code`.
A `pattern`, `minItems` or `propertyNames` without these keywords, and every `format`, is only for editors: the build
reports such faults with better messages.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from derive.protocol.authoring import CODE_OR_FILE
from derive.protocol.entry_points import find_authoring, installed_connectors
from derive.reduce.reduce_keyword import STRATEGIES

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema."""

TOKEN = r"[^\x00-,/:-@\[-\^`{-\x7f\s]+"
"""Pattern of a token, in the regular expressions that all languages share.

The ASCII characters that it allows are letters, digits, `-`, `_` and `.`; the build checks other characters.
"""

NAME = rf"^{TOKEN}(/{TOKEN})*$"
"""Pattern of the name of a collection."""

_VISIBLE = r"[^\x00-\x20\x7f-\xa0\u2028\u2029]"
LINE = rf"^{_VISIBLE}([^\x00-\x1f\x7f-\x9f\u2028\u2029]*{_VISIBLE})?$"
"""Pattern of one line of text, such as the name of a test."""

_SPACE = r"[ \t\n\r\f\v]*"
_UNIT = (
    "(?:u(?:s|secs?)|microseconds?|m(?:s|secs?)|milliseconds?|s(?:ecs?)?|seconds?|m(?:ins?)?|minutes?"
    "|h(?:rs?)?|hours?|d(?:ays?)?|w(?:ks?)?|weeks?)"
)
_PERIOD = rf"(?:{_SPACE}[0-9]{{1,18}}{_SPACE}{_UNIT}{_SPACE})+$"
_RFC3339 = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
)
BOOLEAN: Schema = {"type": "boolean"}
U32: Schema = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
POINTER: Schema = {
    "type": "string",
    "format": "json-pointer",
    "pattern": "^(/([^/~]|~[01])+)*$",
    "errorMessage": "this value is not a JSON pointer such as '/id'",
    "x-code": "E302",
}
ON_SOURCE_RESET: Schema = {
    "description": "Behaviour when another relation gets the name of the source, or the source is"
    " reset. `stop`: the task waits for your decision. `follow`: the task retracts the former rows and reads the new"
    " ones.",
    "enum": ["stop", "follow"],
    "default": "stop",
}
TIME: Schema = {
    "type": "string",
    "format": "date-time",
    "pattern": _RFC3339,
    "errorMessage": "this value is not a time such as 2023-01-23T01:00:00Z",
    "x-code": "E502",
}
DURATION: Schema = {
    "type": "string",
    "pattern": f"^{_PERIOD}",
    "errorMessage": "not a duration such as '15m', '24h' or '1h 30s'",
    "x-code": "E013",
}
TICK: Schema = {
    "type": "string",
    "pattern": f"^(?=[^1-9]*[1-9]){_PERIOD}",
    "errorMessage": "not a duration longer than 0s, such as '1s' or '5m'",
    "x-code": "E013",
}
STEP_TIME: Schema = {"type": "string", "pattern": rf"{_RFC3339}|^\+{_PERIOD}"}

NO_EFFECT = "x-no-effect"
"""Keyword of settings without effect; its value names an alternative, or is empty."""


def without_effect(schema: Schema, instead: str = "") -> Schema:
    """Return the schema of a setting that is accepted and has no effect.

    Args:
        schema: schema of the value.
        instead: alternative that has the intended effect; empty for none.
    """
    description = f"Accepted, without effect{': ' if instead else ''}{instead}."
    return {**schema, "description": description, NO_EFFECT: instead}


EXPECT_PUB_ID: Schema = without_effect({"type": "string"})
DELETE: Schema = without_effect({**BOOLEAN, "default": False}, "leave it out of the catalog to remove it")
RESET: Schema = without_effect({**BOOLEAN, "default": False}, "'flowctl reset' starts a task over")


def ref(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def text(description: str, **keywords: Any) -> Schema:
    """Return the schema of a string."""
    return {"type": "string", "description": description, **keywords}


def array(description: str, items: Schema, types: Sequence[str] = ("array",), **keywords: Any) -> Schema:
    """Return the schema of an array, or of one of the other `types`."""
    return {"type": _type(types), "description": description, "items": items, **keywords}


def record(
    title: str,
    description: str,
    properties: Mapping[str, Schema],
    required: Sequence[str] = (),
    *,
    types: Sequence[str] = ("object",),
    **keywords: Any,
) -> Schema:
    """Return the schema of an object with these properties, or of one of the other `types`.

    Properties that begin with `x-` are free for authors, unless `patternProperties={}`.
    """
    return {
        "title": title,
        "description": description,
        "type": _type(types),
        "properties": dict(properties),
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
        **keywords,
    }


def only_one(properties: Mapping[str, Schema], code: str, message: str, **keywords: Any) -> Schema:
    """Return the schema of an object with exactly one of these properties; `code` and `message` are for violations."""
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "errorMessage": message,
        "x-code": code,
        **keywords,
    }


def entries(description: str, values: Schema, *, types: Sequence[str] = ("object",), names: str = "") -> Schema:
    """Return the schema of a map from names to values; `names` is a pattern for the names."""
    return {
        "description": description,
        "type": _type(types),
        "additionalProperties": values,
        **({"propertyNames": {"pattern": names}} if names else {}),
    }


def shards(tick: str) -> Schema:
    """Return the schema of a task's shards, with `tick` as the default duration of transactions."""
    return record(
        "Shards",
        "Settings of the task.",
        {
            "disable": {**BOOLEAN, "description": "Do not run the task.", "default": False},
            "maxTxnDuration": {
                **TICK,
                "description": "The tick, such as `1s`: documents of one key and tick are combined into one.",
                "default": tick,
            },
            "minTxnDuration": without_effect({**DURATION, "default": "0s"}, "'maxTxnDuration' is the tick"),
            "hotStandbys": without_effect({**U32, "default": 0}),
            "ringBufferSize": without_effect({**U32, "default": 65536}),
            "readChannelSize": without_effect({**U32, "default": 4096}),
            "flags": entries("Accepted, without effect.", {}),
            "logLevel": {
                "description": "Lowest level of logged messages.",
                "enum": ["error", "warn", "info", "debug", "trace"],
                "default": "info",
            },
        },
    )


def _type(types: Sequence[str]) -> str | list[str]:
    return types[0] if len(types) == 1 else list(types)


_CONFIG: Schema = {
    "description": "Configuration of the connector, or the name of a file that holds it. For a secret write"
    " `${env:NAME}` or `${file:PATH}`.",
    "type": ["string", "object"],
}
_ENDPOINTS: dict[str, Schema] = {
    "connector": record(
        "Connector",
        "A connector, by its image.",
        {"image": text("Name of the image; registry and tag are optional."), "config": _CONFIG},
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
    description="The connector to an external system.",
)
ADDRESS: Schema = {
    "type": "string",
    "pattern": r"^[^\s/]+:[0-9]{1,5}$",
    "errorMessage": "an address is a host and a port, such as 'localhost:5000'",
    "x-code": "E713",
}
_MATERIALIZED: Schema = {
    "description": "The connector to an external system: `connector`, `local`, or an `address` with a `config`.",
    "type": "object",
    "properties": {
        **_ENDPOINTS,
        "address": {**ADDRESS, "description": "Address of a running connector, such as `localhost:5000`."},
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
    "description": (
        "The part of the endpoint that the binding uses, such as a table; or the name of a file that holds this object."
    ),
    "type": ["string", "object"],
}
_ON_CHANGE: Schema = without_effect(
    {"enum": ["abort", "backfill", "disableBinding", "disableTask"]},
    "a task whose schema no longer fits stops and reports the reason",
)
_DISABLE: Schema = {**BOOLEAN, "description": "Disable this binding.", "default": False}
_BACKFILL: Schema = {**U32, "description": "Raise this number to start the binding over.", "default": 0}
_PRIORITY: Schema = {**U32, "description": "Higher priorities come first.", "default": 0}

CAPTURE = record(
    "Capture",
    "A source of documents outside the catalog. The definition is kept, but a capture does not run: use"
    " `flowctl ingest`.",
    {
        "endpoint": _CAPTURED,
        "bindings": array(
            "Captured resources, each with its collection.",
            record(
                "Binding",
                "Captured resources, each with its collection.",
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
            "Behaviour for new resources.",
            {
                "addNewBindings": {**BOOLEAN, "description": "Capture them too."},
                "evolveIncompatibleCollections": {**BOOLEAN, "description": "Adapt collections that no longer fit."},
            },
            types=("object", "null"),
        ),
        "interval": {**DURATION, "description": "Interval between polls for documents."},
        "shards": shards("1s"),
        "expectPubId": EXPECT_PUB_ID,
        "delete": DELETE,
        "reset": RESET,
        "redactSalt": text(
            "Salt of hashes in redacted documents, in base64; the default is the salt of the data folder."
        ),
    },
    ("endpoint", "bindings"),
)

_FIELDS = record(
    "Fields",
    "Selection of materialized fields.",
    {
        "groupBy": array("Fields of the collection's key, in the order of the key.", text("Name of a field.")),
        "require": entries("Required fields, each with settings of the connector.", {}),
        "include": entries("The same as `require`.", {}),
        "exclude": array("Excluded fields.", text("Name of a field.")),
        "recommended": {
            "description": "Add the fields that the connector recommends: all, none, or those down to a level.",
            "type": ["boolean", "integer"],
            "minimum": 0,
            "default": True,
            "errorMessage": "'recommended' is true, false, or a number of levels",
            "x-code": "E010",
        },
    },
)

MATERIALIZATION = record(
    "Materialization",
    "Collections that another system stores, with each later change.",
    {
        "endpoint": _MATERIALIZED,
        "source": record(
            "Capture",
            "A capture. Accepted, without effect: name its collections in `bindings`.",
            {
                "capture": text("Name of the capture."),
                "targetNaming": text("Rule for the names of resources."),
                "deltaUpdates": {**BOOLEAN, "description": "Append documents instead of replacing rows."},
                "fieldsRecommended": {"type": ["boolean", "integer"], "description": "As in a binding's `fields`."},
            },
            types=("string", "object"),
        ),
        "bindings": array(
            "Materialized collections, each with its resource.",
            record(
                "Binding",
                "A materialized collection and its resource.",
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


_SELECTOR = record(
    "Partition selector",
    "Logical partitions to read: an included field has one of the listed values, and an excluded field has none of"
    " them.",
    {
        "include": entries("Fields, each with its permitted values.", array("Permitted values.", {})),
        "exclude": entries("Fields, each with its excluded values.", array("Excluded values.", {})),
    },
    patternProperties={},
)

_SOURCE = record(
    "Source",
    "The collection to read: its name, or an object that also selects documents.",
    {
        "name": text("Name of the collection."),
        "partitions": ref("selector"),
        "notBefore": {**TIME, "description": "Documents published before this RFC 3339 time are left out."},
        "notAfter": {**TIME, "description": "Documents published from this RFC 3339 time on are left out."},
    },
    ("name",),
    types=("string", "object"),
)

_READ = record(
    "Source",
    "The collection to verify: its name, or an object that also selects partitions.",
    {"name": text("Name of the collection."), "partitions": ref("selector")},
    ("name",),
    types=("string", "object"),
)

_SHUFFLE: Schema = {
    "description": "The shuffle, which assigns documents to shards: `any`, a key, or a key that SQL computes. Default:"
    " the source collection's key.",
    "if": {"type": "object"},
    "then": only_one(
        {
            "key": array(
                "JSON pointers into the source document; documents with equal values belong to one shard.",
                POINTER,
                minItems=1,
                errorMessage="a shuffle key is an array of at least one JSON pointer",
                **{"x-code": "E503"},
            ),
            "lambda": text(f"SQL that returns one row, whose columns are the shuffle key. {CODE_OR_FILE}"),
        },
        "E015",
        "'shuffle' is 'any', or an object with 'key' or 'lambda'",
    ),
    "else": {
        "const": "any",
        "errorMessage": "'shuffle' is 'any', or an object with 'key' or 'lambda'",
        "x-code": "E015",
    },
}


_ON_VIOLATION: Schema = {
    "description": "Behaviour when a source document is invalid, or makes the lambda fail. `stop`: the task stops."
    " `quarantine`: the document is put aside, and the task continues; see `flowctl quarantine`.",
    "enum": ["stop", "quarantine"],
    "default": "stop",
}


_TRANSFORM = record(
    "Transform",
    "One source of a derivation, and the lambda that runs for each of its documents.",
    {
        "name": text("Name of the transform, unique within the derivation.", pattern=f"^{TOKEN}$"),
        "source": ref("source"),
        "shuffle": _SHUFFLE,
        "lambda": {
            "description": "The code that turns a source document into derived documents. SQL of one or more"
            " statements: parameters"
            f" such as `$amount` are fields of the document, rows become documents. {CODE_OR_FILE} A TypeScript"
            " derivation needs none: its module has a method for each transform.",
            "type": ["string", "object", "null"],
        },
        "priority": {**U32, "description": "Documents of a higher priority are processed first.", "default": 0},
        "readDelay": {
            **DURATION,
            "description": "Delay from a document's publication to its processing, such as `15m` or `1h`.",
        },
        "disable": {**BOOLEAN, "description": "Disable this transform.", "default": False},
        "backfill": {**U32, "description": "Raise this number to read the source again from its start.", "default": 0},
        "formerly": text(
            "The former name of this transform: the transform continues where the former one stopped, and reads no"
            " document again. Empty: the transform is new.",
            pattern=f"^({TOKEN})?$",
        ),
        "onSourceReset": ON_SOURCE_RESET,
        "onViolation": _ON_VIOLATION,
    },
    ("name", "source"),
)


def _using() -> Schema:
    """Return the schema of `using`: exactly one installed connector with its configuration."""
    names = installed_connectors()
    listed = ", ".join(f"'{name}'" for name in names)
    return only_one(
        {name: find_authoring(name).config_schema() for name in names},
        "E014",
        f"'using' names exactly one of {' and '.join(listed.rsplit(', ', 1))}",
        description="The language of the lambdas, with its configuration.",
    )


def _derive() -> Schema:
    return record(
        "Derivation",
        "The derivation of this collection's documents from other collections.",
        {
            "using": _using(),
            "transforms": array("Sources, and the lambda of each.", ref("transform")),
            "shuffleKeyTypes": array(
                "Types of the shuffle key's components; only needed if no transform has a key of JSON pointers.",
                {
                    "enum": ["boolean", "integer", "string"],
                    "errorMessage": "the type of a shuffle key is 'boolean', 'integer' or 'string'",
                    "x-code": "E505",
                },
            ),
            "shards": shards("1s"),
            "redactSalt": text(
                "Salt of hashes in redacted documents, in base64; the default is the salt of the data folder."
            ),
        },
        ("using", "transforms"),
    )


_PROJECTION = record(
    "Projection",
    "The location of a field, alone or with whether it is a logical partition.",
    {
        "location": {**POINTER, "description": "JSON pointer of the location."},
        "partition": {
            **BOOLEAN,
            "description": "Store documents with different values of this field in different files.",
            "default": False,
        },
    },
    ("location",),
    types=("string", "object"),
    pattern=POINTER["pattern"],
)

_JOURNALS = record(
    "Journals",
    "Accepted, without effect.",
    {
        "fragments": record(
            "Fragments",
            "Accepted, without effect.",
            {
                "compressionCodec": {
                    "description": "Compression of files.",
                    "enum": ["NONE", "GZIP", "GZIP_OFFLOAD_DECOMPRESSION", "SNAPPY", "ZSTANDARD"],
                },
                "flushInterval": {**DURATION, "description": "Duration after which a file is complete."},
                "length": {**U32, "description": "Megabytes after which a file is complete."},
                "retention": {**DURATION, "description": "Duration for which files are kept."},
            },
        )
    },
    **{NO_EFFECT: "'flowctl compact' deletes history"},
)


def _collection() -> Schema:
    return {
        **record(
            "Collection",
            "A collection of JSON documents with a key and a schema.",
            {
                "schema": ref("schema"),
                "writeSchema": ref("schema"),
                "readSchema": ref("schema"),
                "key": array(
                    "JSON pointers of the key; documents of one key are reduced together.", POINTER, minItems=1
                ),
                "projections": entries("Names of fields, each with its location in a document.", ref("projection")),
                "journals": _JOURNALS,
                "derive": _derive(),
                "expectPubId": EXPECT_PUB_ID,
                "delete": DELETE,
                "reset": RESET,
            },
            ("key",),
        ),
        "if": {"type": "object"},
        "then": {
            "oneOf": [
                {"required": ["schema"], "properties": {"readSchema": False, "writeSchema": False}},
                {"required": ["readSchema", "writeSchema"], "properties": {"schema": False}},
            ],
            "errorMessage": "a collection needs either 'schema', or both 'readSchema' and 'writeSchema'",
            "x-code": "E401",
        },
    }


_NO_DOCUMENTS: Schema = {"errorMessage": "'documents' must be an array of objects", "x-code": "E601"}
_DOCUMENTS = array(
    "Documents, in the file or in a YAML or JSON file that is named.",
    {"type": "object", **_NO_DOCUMENTS},
    types=("array", "string"),
    **_NO_DOCUMENTS,
)
_STEP = only_one(
    {
        "ingest": record(
            "Ingest",
            "Publish documents into a collection.",
            {
                "description": text("Purpose of this step."),
                "collection": ref("read"),
                "at": {
                    **STEP_TIME,
                    "description": "Time of the step: an RFC 3339 time, or an offset from the beginning of the test, "
                    "such as `+20m`. In a test that sets times, `verify` shows the documents published up to its time.",
                },
                "documents": _DOCUMENTS,
            },
            ("collection", "documents"),
        ),
        "verify": record(
            "Verify",
            "The expected reduced documents, in the order of the key. Properties are optional.",
            {
                "description": text("Purpose of this step."),
                "collection": ref("read"),
                "partitions": ref("selector"),
                "documents": _DOCUMENTS,
            },
            ("collection", "documents"),
        ),
        "advance": {
            **TICK,
            "description": "Time that passes, such as `31m`. Documents with a longer `readDelay` stay unread.",
        },
    },
    "E016",
    "a step is 'ingest', 'verify' or 'advance'",
    title="Step",
    description="A step of a test: `ingest`, `verify` or `advance`.",
)
_TEST = record(
    "Test",
    "Steps, as an array or with a description.",
    {
        "description": text("Purpose of the test."),
        "steps": array("Steps, in order.", ref("step")),
        "expectPubId": EXPECT_PUB_ID,
        "delete": DELETE,
    },
    ("steps",),
    types=("array", "object"),
    items=ref("step"),
)

_SCHEMA: Schema = {
    "title": "Schema",
    "description": "A JSON Schema (draft 2020-12) with reduction annotations, or the name of a file that holds one.",
    "type": ["string", "object"],
    "properties": {
        "type": {"description": 'JSON types. null is written in quotes: `[string, "null"]`.'},
        "required": {"description": "Properties that every document has."},
        "default": {"description": "Value of the property in documents that lack it."},
        "properties": {"description": "The schema of each property."},
        "reduce": {
            "description": "Reduction of two values at this location to one, such as `{strategy: sum}`.",
            "examples": [{"strategy": strategy} for strategy in STRATEGIES],
        },
    },
}


@cache
def catalog_schema() -> Schema:
    """Return the JSON Schema of a catalog file."""
    maps = ("object", "null")
    root = record(
        "Catalog",
        "Collections, derivations, materializations and tests.",
        {
            "$schema": text("The schema that editors check this file with."),
            "import": array(
                "Other files of the catalog, by path (relative to this file) or http(s) URL.",
                text("A file to load too.", title="Import"),
                types=("array", "null"),
            ),
            "collections": entries("Collections, by name.", ref("collection"), names=NAME, types=maps),
            "captures": entries(
                "Captures, by name. The definitions are kept, but captures do not run.",
                ref("capture"),
                names=NAME,
                types=maps,
            ),
            "materializations": entries("Materializations, by name.", ref("materialization"), names=NAME, types=maps),
            "tests": entries("Tests, by name: any line of text.", ref("test"), names=LINE, types=maps),
        },
    )
    definitions: dict[str, Any] = {
        "collection": _collection(),
        "projection": _PROJECTION,
        "transform": _TRANSFORM,
        "source": _SOURCE,
        "read": _READ,
        "selector": _SELECTOR,
        "test": _TEST,
        "step": _STEP,
        "schema": _SCHEMA,
        "capture": CAPTURE,
        "materialization": MATERIALIZATION,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}
