"""The JSON Schema of `flow.yaml`, the single description of a catalog's syntax.

Editors complete, explain and check catalogs with it, and the loader rejects the same files. Each fault is reported at
its own position: a definition for a string or an object has `type: [string, object]` with constraints for both, because
`oneOf` would only report that neither matches.

Two own keywords hold the message and the code of a fault: `errorMessage`, which editors show too, and `x-code`. A
`pattern`, `minItems` or `propertyNames` without them, and every `format`, is for editors only: the build reports those
faults with better messages.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from derive.catalog.language.endpoint_schema import CAPTURE, MATERIALIZATION
from derive.catalog.language.vocabulary import (
    BOOLEAN,
    DELETE,
    DURATION,
    EXPECT_PUB_ID,
    LINE,
    NAME,
    NO_EFFECT,
    ON_SOURCE_RESET,
    POINTER,
    RESET,
    STEP_TIME,
    TICK,
    TIME,
    TOKEN,
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
from derive.protocol.authoring import CODE_OR_FILE
from derive.protocol.installed import find_authoring, installed_connectors
from derive.reduce.annotation import STRATEGIES

_SELECTOR = record(
    "Partition selector",
    "Which logical partitions to read: every included field has one of its values, and no excluded field has any.",
    {
        "include": entries("Fields, and the values of which one must match.", array("Values that are wanted.", {})),
        "exclude": entries("Fields, and the values of which none may match.", array("Values that are left out.", {})),
    },
    patternProperties={},
)

_SOURCE = record(
    "Source",
    "The collection to read, by its name alone or with what of it is wanted.",
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
    "The collection to look at, by its name alone or with its logical partitions.",
    {"name": text("Name of the collection."), "partitions": ref("selector")},
    ("name",),
    types=("string", "object"),
)

_SHUFFLE: Schema = {
    "description": "How documents find their shard: `any`, by a key, or by a key that SQL computes. Left out: by the"
    " source collection's key.",
    "if": {"type": "object"},
    "then": only_one(
        {
            "key": array(
                "JSON pointers into the source document; documents of equal values meet in one shard.",
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


_TRANSFORM = record(
    "Transform",
    "One source of a derivation, and what is done with each of its documents.",
    {
        "name": text("Name of the transform, unique within the derivation.", pattern=f"^{TOKEN}$"),
        "source": ref("source"),
        "shuffle": _SHUFFLE,
        "lambda": {
            "description": "What turns a source document into derived ones. SQL of one or more statements: parameters"
            f" such as `$amount` are fields of the document, rows become documents. {CODE_OR_FILE} A TypeScript"
            " derivation needs none: its module has a method for each transform.",
            "type": ["string", "object", "null"],
        },
        "priority": {**U32, "description": "Documents of a higher priority are processed first.", "default": 0},
        "readDelay": {
            **DURATION,
            "description": "How long after its publication a document is processed: `15m`, `1h`.",
        },
        "disable": {**BOOLEAN, "description": "Leave this transform out.", "default": False},
        "backfill": {**U32, "description": "Raise it to read the source from its start once more.", "default": 0},
        "formerly": text(
            "The name that this transform had before it was renamed: it goes on where that one was, and reads nothing"
            " again.",
            pattern=f"^{TOKEN}$",
        ),
        "onSourceReset": ON_SOURCE_RESET,
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
        description="What runs the lambdas.",
    )


def _derive() -> Schema:
    return record(
        "Derivation",
        "How the documents of this collection follow from those of others.",
        {
            "using": _using(),
            "transforms": array("Sources, and the lambda of each.", ref("transform")),
            "shuffleKeyTypes": array(
                "Types of the shuffle key's components; only needed where nothing else tells them.",
                {
                    "enum": ["boolean", "integer", "string"],
                    "errorMessage": "the type of a shuffle key is 'boolean', 'integer' or 'string'",
                    "x-code": "E505",
                },
            ),
            "shards": shards("1s"),
            "redactSalt": text("Salt of hashes in redacted documents, in base64; that of the data folder if left out."),
        },
        ("using", "transforms"),
    )


_PROJECTION = record(
    "Projection",
    "The location of a field, alone or with whether it is a logical partition.",
    {
        "location": {**POINTER, "description": "JSON pointer of the location."},
        "partition": {**BOOLEAN, "description": "Store documents apart by this field.", "default": False},
    },
    ("location",),
    types=("string", "object"),
    pattern=POINTER["pattern"],
)

_JOURNALS = record(
    "Journals",
    "Accepted, and of no effect here.",
    {
        "fragments": record(
            "Fragments",
            "Accepted, and of no effect here.",
            {
                "compressionCodec": {
                    "description": "How files are compressed.",
                    "enum": ["NONE", "GZIP", "GZIP_OFFLOAD_DECOMPRESSION", "SNAPPY", "ZSTANDARD"],
                },
                "flushInterval": {**DURATION, "description": "After how long a file is complete."},
                "length": {**U32, "description": "Megabytes after which a file is complete."},
                "retention": {**DURATION, "description": "How long files are kept."},
            },
        )
    },
    **{NO_EFFECT: "'flowctl compact' says what is kept"},
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
                "projections": entries("Names of fields, and where they are in a document.", ref("projection")),
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
                "description": text("What happens."),
                "collection": ref("read"),
                "at": {
                    **STEP_TIME,
                    "description": "When: an RFC 3339 time, or an offset from the beginning of the test such as `+20m`."
                    " In a test that tells time, `verify` shows what is published by then.",
                },
                "documents": _DOCUMENTS,
            },
            ("collection", "documents"),
        ),
        "verify": record(
            "Verify",
            "The collection's reduced documents are these, in the order of its key. Properties may be left out.",
            {
                "description": text("What should be."),
                "collection": ref("read"),
                "partitions": ref("selector"),
                "documents": _DOCUMENTS,
            },
            ("collection", "documents"),
        ),
        "advance": {
            **TICK,
            "description": "Let this much time pass, such as `31m`. What a `readDelay` holds back longer stays back.",
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
        "description": text("What the test shows."),
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
        "default": {"description": "Stands for the value where it is left out."},
        "properties": {"description": "The schema of each property."},
        "reduce": {
            "description": "How two values at this location become one: `{strategy: sum}`.",
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
        "Collections, how they derive from one another, and tests of them.",
        {
            "$schema": text("The schema that editors check this file with."),
            "import": array(
                "Other files of the catalog, by path (relative to this file) or http(s) URL.",
                text("A file to load too.", title="Import"),
                types=("array", "null"),
            ),
            "collections": entries("Collections, by name.", ref("collection"), names=NAME, types=maps),
            "captures": entries(
                "Captures, by name. They are kept, and not run here.", ref("capture"), names=NAME, types=maps
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
