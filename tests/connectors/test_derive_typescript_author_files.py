"""Declarations of types, construct by construct, as literal text. No Deno runs here."""

from __future__ import annotations

from textwrap import dedent

import pytest

from connectors.derive_typescript.author_files import declare, described, typescript_type
from derive.document.pointer import JSON
from derive.schema.shape import infer

# Schema, and the type of a location that it describes.
TYPES: list[tuple[JSON, str]] = [
    # nothing known, nothing possible
    (True, "unknown"),
    (False, "never"),
    ({"type": "string", "allOf": [{"type": "integer"}]}, "never"),
    # scalars, and the order of unions
    ({"type": "integer"}, "number"),
    ({"type": ["string", "null", "number", "boolean"]}, "boolean | number | string | null"),
    ({"type": ["null", "array", "object"]}, "Record<string, unknown> | unknown[] | null"),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, "number | string | null"),
    # values
    ({"const": "x"}, '"x"'),
    ({"enum": ["b", "a", 1, None, True]}, 'true | 1 | "a" | "b" | null'),
    ({"enum": [True, None, False]}, "boolean | null"),
    ({"enum": ["a", 1], "type": "string"}, '"a"'),
    ({"enum": [1, True], "allOf": [{"enum": [True]}]}, "true"),  # true is not 1
    ({"enum": ["a"], "allOf": [{"type": "integer"}]}, "never"),
    ({"const": {"a": 1, "b c": ["x", None]}}, '{ a: 1; "b c": ["x", null] }'),
    ({"enum": [[], {}, "x"]}, 'Record<string, never> | [] | "x"'),
    ({"anyOf": [{"const": "a"}, {"type": "string"}]}, "string"),
    ({"anyOf": [{"const": "a"}, {"type": "null"}]}, '"a" | null'),
    ({"const": 'say "hi" \\ \u2028'}, '"say \\"hi\\" \\\\ \u2028"'),
    ({"const": -1.5}, "-1.5"),
    ({"const": 10**400}, "number"),  # infinite in JavaScript
    ({"$ref": "#/$defs/way", "$defs": {"way": {"enum": ["in", "out"]}}}, '"in" | "out"'),
    # arrays and tuples
    ({"type": "array"}, "unknown[]"),
    ({"type": "array", "items": {"type": "string"}}, "string[]"),
    ({"type": "array", "items": False}, "never[]"),
    ({"type": "array", "maxItems": 0}, "[]"),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
    ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "number[][]"),
    ({"type": "array", "items": {"type": "string", "title": "Name"}}, "(/* Name */ string)[]"),
    (
        {"type": "array", "minItems": 1, "prefixItems": [{"type": "string"}, {"type": ["null", "integer"]}]},
        "[string, (number | null)?, ...(unknown)[]]",
    ),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, "[string?]"),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "string"}}, "[1?, ...(string)[]]"),
    (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}, {"const": 3}], "maxItems": 2, "minItems": 2},
        "[1, 2]",
    ),
    # objects
    ({"type": "object"}, "Record<string, unknown>"),
    ({"type": "object", "additionalProperties": False}, "Record<string, never>"),
    (
        {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}, "a b": {"type": "integer"}}},
        '{\n    "a b"?: number;\n    b: string;\n}',
    ),
    ({"type": "object", "required": ["a"]}, "{\n    a: unknown;\n}"),
    ({"type": "object", "properties": {"a": False}}, "{\n    a?: never;\n}"),
    (
        {"type": "object", "properties": {"_a": True, "größe": True, "a²": True, "1st": True, "new": True}},
        '{\n    "1st"?: unknown;\n    "_a"?: unknown;\n    "a²"?: unknown;\n    größe?: unknown;\n    new?: unknown;\n}',
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        "{\n    a?: string;\n    [k: string]: string | number | undefined;\n}",
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}, "additionalProperties": True},
        "{\n    a: 1;\n    [k: string]: 1 | unknown;\n}",
    ),
    (
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
        "{\n    [k: string]: string;\n}",
    ),
    ({"type": "object", "patternProperties": {"^x-": {"type": "string"}}}, "Record<string, unknown>"),
    (
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"way": {"const": 1}}}}},
        "{\n    a?: {\n        way?: 1;\n    };\n}",
    ),
    # titles and descriptions
    (
        {
            "type": "object",
            "properties": {"a": {"type": "string", "title": "A", "description": "an\n*/ end"}},
            "additionalProperties": False,
        },
        "{\n    a?: /* A an * / end */ string;\n}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), TYPES)
def test_type_agrees_with_the_schema(schema: JSON, expected: str) -> None:
    assert typescript_type(infer(schema)) == expected


def test_a_title_stands_before_the_type() -> None:
    assert described(infer({"type": ["string", "null"], "title": "Name"})) == "/* Name */ string | null"


def test_a_string_that_utf8_cannot_hold_is_escaped() -> None:
    assert typescript_type(infer({"const": "\ud800"})) == '"\\ud800"'


LIST: JSON = {
    "type": "object",
    "title": "A list",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
TREE: JSON = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/tree-node", "description": "where it begins"}},
    "$defs": {
        "tree-node": {
            "type": "object",
            "required": ["children"],
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree-node"}}},
        },
        "unused": {"type": "string"},
    },
}
ANCHORS: JSON = {
    "type": "object",
    "required": ["home", "work", "extended"],
    "properties": {
        "home": {"$ref": "#/$defs/address"},
        "work": {"oneOf": [{"$ref": "#/$defs/address"}, {"type": "string"}]},
        "extended": {"allOf": [{"$ref": "#/$defs/address"}, {"properties": {"floor": {"type": "integer"}}}]},
        "inline": {"$anchor": "Inline", "const": 1},
        "other": {"$anchor": "lower", "const": 2},
    },
    "$defs": {"address": {"$anchor": "Address", "type": "object", "properties": {"street": {"type": "string"}}}},
}
SHAPES: JSON = {
    "type": "object",
    "properties": {
        "shape": {"type": "object", "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}]},
        "colored": {
            "properties": {"color": {"type": "string"}},
            "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}],
        },
    },
    "$defs": {
        "circle": {"$anchor": "Circle", "type": "object", "properties": {"radius": {"type": "number"}}},
        "square": {"$anchor": "Square", "type": "object", "properties": {"side": {"type": "number"}}},
    },
}
# Schema, and the declarations of its type, called Document.
DECLARED: list[tuple[JSON, str]] = [
    # documents are objects, whatever their schema says
    (True, "export type Document = Record<string, unknown>;"),
    ({"properties": {"a": {"type": "string"}}}, "export type Document = {\n    a?: string;\n};"),
    # a schema that refers to itself is its own type
    (
        LIST,
        """\
        export type Document = /* A list */ {
            next?: Document | null;
            value?: number;
        };""",
    ),
    # so is any that does, called as it is defined; others are written where they are used
    (
        TREE,
        """\
        export type Document = {
            root?: /* where it begins */ DocumentTreeNode;
        };
        export type DocumentTreeNode = {
            children: DocumentTreeNode[];
        };""",
    ),
    # anchors in upper camel case name types; a schema that says more than a name takes in what the name stands for
    (
        ANCHORS,
        """\
        export type Document = {
            extended: {
                floor?: number;
                street?: string;
            };
            home: DocumentAddress;
            inline?: DocumentInline;
            other?: 2;
            work: DocumentAddress | string;
        };
        export type DocumentInline = 1;
        export type DocumentAddress = {
            street?: string;
        };""",
    ),
    # alternatives that have names stay apart, and what is said of all of them is said of each
    (
        SHAPES,
        """\
        export type Document = {
            colored?: {
                color?: string;
                radius?: number;
            } | {
                color?: string;
                side?: number;
            };
            shape?: DocumentCircle | DocumentSquare;
        };
        export type DocumentCircle = {
            radius?: number;
        };
        export type DocumentSquare = {
            side?: number;
        };""",
    ),
    # so do alternatives that are objects, with what else is said of them
    (
        {
            "required": ["kind"],
            "properties": {"id": {"type": "integer"}},
            "oneOf": [
                {"properties": {"kind": {"const": "a"}, "size": {"type": "integer"}}, "required": ["size"]},
                {"properties": {"kind": {"const": "b"}}},
                {"type": "string"},
            ],
        },
        """\
        export type Document = {
            id?: number;
            kind: "a";
            size: number;
        } | {
            id?: number;
            kind: "b";
        };""",
    ),
    # a root with a name
    (
        {"$anchor": "Account", "type": "object", "properties": {"parent": {"$ref": "#"}}},
        """\
        export type Document = DocumentAccount;
        export type DocumentAccount = {
            parent?: DocumentAccount;
        };""",
    ),
    # two that would have one name
    (
        {
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/X"}},
            "$defs": {
                "x": {"type": "array", "items": {"$ref": "#/$defs/x"}},
                "X": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/X"}},
            },
        },
        """\
        export type Document = {
            a?: DocumentX;
            b?: DocumentX2;
        };
        export type DocumentX = DocumentX[];
        export type DocumentX2 = DocumentX2[];""",
    ),
    # a definition that goes round and round says nothing
    (
        {
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"const": 1}]}, "b": {"$ref": "#/$defs/a"}},
        },
        """\
        export type Document = {
            a?: DocumentA;
        };
        export type DocumentA = unknown;
        export type DocumentB = unknown;""",
    ),
    # a schema that came from another file is called by it
    (
        {
            "properties": {"a": {"$ref": "#/$defs/node.schema.yaml"}},
            "$defs": {
                "node.schema.yaml": {"properties": {"b": {"$ref": "#/$defs/node.schema.yaml"}}, "type": "object"}
            },
        },
        """\
        export type Document = {
            a?: DocumentNode;
        };
        export type DocumentNode = {
            b?: DocumentNode;
        };""",
    ),
]


@pytest.mark.parametrize(("schema", "expected"), DECLARED)
def test_schemas_with_names_are_types_of_their_own(schema: JSON, expected: str) -> None:
    assert "\n".join(declare(schema, "Document", {"Document"})) == dedent(expected)


def test_type_names_of_two_collections_differ() -> None:
    taken = {"SourceFrom", "SourceFromIn"}
    assert declare({"$anchor": "In", "type": "object"}, "SourceFrom", taken) == [
        "export type SourceFrom = SourceFromIn2;",
        "export type SourceFromIn2 = Record<string, unknown>;",
    ]
    assert taken == {"SourceFrom", "SourceFromIn", "SourceFromIn2"}


def test_deeply_nested_schemas_take_linear_time() -> None:
    schema: JSON = {"type": "string"}
    for _ in range(30):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}
    (line,) = declare(schema, "Document", {"Document"})
    assert line.count("a?: ") == 30
    assert line.count("[]") == 30
