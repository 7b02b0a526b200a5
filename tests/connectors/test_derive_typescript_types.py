"""Types that a derivation's module imports, from the schemas of its collections. No Deno runs here."""

from __future__ import annotations

import pytest

from connectors.derive_typescript.literals import Schemas
from connectors.derive_typescript.place import authored, member_position, position_in
from connectors.derive_typescript.types import generate_interfaces, method_of, type_of
from derive.position import Position, Script
from derive.protocol.specs import JSON, CollectionSpec, DerivationSpec, SelectorSpec, ShuffleSpec, TransformSpec
from derive.schema.infer import infer

AT = Position("flow.yaml", 3, 5)

# Transform, and the method that implements it.
METHODS = [
    ("fromOutcomes", "fromOutcomes"),
    ("FromOutcomes", "fromOutcomes"),
    ("from-outcomes", "fromOutcomes"),
    ("from_the.outcomes", "fromTheOutcomes"),
    ("2nd-from", "2ndFrom"),
    ("über-weisung", "überWeisung"),
]


@pytest.mark.parametrize(("transform", "method"), METHODS)
def test_methods_are_named_in_lower_camel_case(transform: str, method: str) -> None:
    assert method_of(transform) == method


# Schema, and the type of its documents.
TYPES: list[tuple[JSON, str]] = [
    (True, "unknown"),
    (False, "never"),
    ({"type": "integer"}, "number"),
    ({"type": ["string", "null", "number", "boolean"]}, "boolean | number | string | null"),
    ({"type": "object"}, "Record<string, unknown>"),
    ({"type": "object", "additionalProperties": False}, "Record<string, never>"),
    ({"enum": ["b", "a", 1, None, True]}, '"b" | "a" | 1 | null | true'),
    ({"const": "x"}, '"x"'),
    ({"enum": ["a", 1], "type": "string"}, '"a"'),
    ({"enum": [1, True], "allOf": [{"enum": [True]}]}, "true"),  # true is not 1
    ({"enum": [{"a": 1}]}, "Record<string, unknown>"),  # of objects only the shape is told
    ({"enum": ["a"], "allOf": [{"type": "integer"}]}, "never"),
    ({"anyOf": [{"const": "a"}, {"type": "string"}]}, "string"),  # alternatives: the shape is the bound
    ({"$ref": "#/$defs/way", "$defs": {"way": {"enum": ["in", "out"]}}}, '"in" | "out"'),
    ({"type": "array"}, "unknown[]"),
    ({"type": "array", "items": {"type": "string"}}, "string[]"),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
    (
        {"type": "array", "minItems": 1, "prefixItems": [{"type": "string"}, {"type": ["null", "integer"]}]},
        "[string, (number | null)?, ...(unknown)[]]",
    ),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, "[string?]"),
    (
        {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}, "a b": {"type": "integer"}}},
        '{\n    "a b"?: number;\n    b: string;\n}',
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        "{\n    a?: string;\n    [k: string]: string | undefined | number;\n}",
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "string", "title": "A", "description": "an\n*/ end"}},
            "additionalProperties": False,
        },
        "{\n    /* A an * / end */ a?: string;\n}",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"way": {"const": 1}}}}},
        "{\n    a?: {\n        way?: 1;\n    };\n}",
    ),
]


@pytest.mark.parametrize(("schema", "expected"), TYPES)
def test_a_type_says_what_the_schema_says(schema: JSON, expected: str) -> None:
    assert type_of(infer(schema), Schemas.of(schema)) == expected


def test_interfaces_have_a_type_and_a_method_for_each_transform() -> None:
    read: JSON = {"type": "object", "required": ["sender"], "properties": {"sender": {"type": "string"}}}
    write: JSON = {"type": "object", "required": ["user"], "properties": {"user": {"type": "string"}}}
    source = CollectionSpec("acme/in", ("/sender",), ("",), True, read, (), AT)
    target = CollectionSpec("acme/out", ("/user",), ("",), write, True, (), AT)
    shuffle = ShuffleSpec("any")
    transforms = tuple(
        TransformSpec(name, index, "acme/in", SelectorSpec(), None, None, shuffle, None, 0, 0, 0, False, AT)
        for index, name in enumerate(("from-in", "2nd"))
    )
    module = Script("", "", Position("out.ts"))
    spec = DerivationSpec(target, "typescript", (), module, transforms, {"acme/in": source}, 1_000_000)
    assert (
        generate_interfaces(spec)
        == """\
// Types of the derivation acme/out, generated from the schemas of its collections.

export type Document = {
    user: string;
};

export type SourceFromIn = {
    sender: string;
};

export type Source2nd = {
    sender: string;
};

export abstract class IDerivation {
    constructor(_open: { state: unknown }) {}

    /** Called at the end of each tick in which documents were processed: what it returns is published, too. */
    flush(): Document[] | Promise<Document[]> {
        return [];
    }

    /** Called at the end of a transaction: the state it returns is handed to the constructor of the next one. */
    startCommit(_startCommit: { runtimeCheckpoint: unknown }): { state?: { updated: unknown; mergePatch: boolean } } | Promise<{ state?: { updated: unknown; mergePatch: boolean } }> {
        return {};
    }

    /** Called between catalog tests, to forget everything. */
    reset(): void | Promise<void> {}

    abstract fromIn(read: { doc: SourceFromIn; publishedAt: string }): Document[] | Promise<Document[]>;
    abstract "2nd"(read: { doc: Source2nd; publishedAt: string }): Document[] | Promise<Document[]>;
}
"""
    )


TEXT = "export class Derivation {\n    fromIn() {\n        throw 1;\n    }\n}\n"
MODULE = Script(TEXT, TEXT, Position("out.ts"))


def test_places_of_deno_become_the_authors() -> None:
    stack = "Error: x\n    at Derivation.fromIn (file:///tmp/flowctl-deno-ab_1/author/up/up/up/up/up/up/up/up/module.ts:3:9)\n"
    assert position_in(MODULE, stack, 5) == Position("out.ts", 3, 9, 5)
    assert position_in(MODULE, "Error: x") is None
    assert authored(MODULE, f"{stack}    at file:///tmp/flowctl-deno-ab_1/main.ts:63:46") == (
        "Error: x\n    at Derivation.fromIn (out.ts:3:9)"
    )
    assert authored(MODULE, "no '/tmp/flowctl-deno-ab_1/other.ts'") == "no './other.ts'"
    beside = "file:///tmp/flowctl-deno-ab_1/author/up/up/up/up/up/up/up/lib/rates.ts:7:2"
    assert authored(Script(TEXT, TEXT, Position("a/b/out.ts")), beside) == "a/lib/rates.ts:7:2"
    remote = Script(TEXT, TEXT, Position("https://acme.test/a/out.ts"))
    assert position_in(remote, beside) == Position("https://acme.test/lib/rates.ts", 7, 2)


def test_a_member_is_found_by_its_name() -> None:
    assert member_position(MODULE, "fromIn") == Position("out.ts", 2, 5, 6)
    assert member_position(MODULE, "other") == Position("out.ts", 1, 1)
