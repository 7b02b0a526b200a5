"""Derivations in TypeScript made of a few lines, and what their methods publish."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from connectors.derive_typescript import TypeScriptConnector
from connectors.derive_typescript.config import TypeScriptConfig
from connectors.derive_typescript.runtime.session import TypeScriptSession
from derive.document.pointer import JSON
from derive.position import Position, Script
from derive.protocol.derive import Level, Log, ReadBatch
from derive.protocol.specs import CollectionSpec, DerivationSpec, Document, InputSpec, ShuffleSpec, TransformSpec

AT = Position("flow.yaml", 3, 5)
MODULE_AT = Position("acme.ts")
CLOCK = 1_700_000_000_123_456  # 2023-11-14T22:13:20.123456Z
HEAD = "import { Document, IDerivation } from 'flow/acme/out.ts';\n"


def collection(name: str, schema: JSON) -> CollectionSpec:
    return CollectionSpec(name, ("/id",), (0,), schema, schema, (), AT)


def transform(name: str, index: int, source: str) -> TransformSpec:
    return TransformSpec(InputSpec(index, name, source, AT), ShuffleSpec("any"))


def derivation(text: str, *transforms: str, schema: JSON = True) -> DerivationSpec:
    source = collection("acme/in", schema)
    names = transforms or ("fromIn",)
    return DerivationSpec(
        collection("acme/out", schema),
        "typescript",
        TypeScriptConfig(Script(text, text, MODULE_AT)),
        tuple(transform(name, index, "acme/in") for index, name in enumerate(names)),
        {"acme/in": source},
        1_000_000,
    )


def lambdas(body: str, members: str = "") -> DerivationSpec:
    """A derivation whose one method, on line 4 if there are no other members, has this body."""
    text = (
        f"export class Derivation extends IDerivation {{{members}\n    fromIn(read: any): any {{\n{body}\n    }}\n}}\n"
    )
    return derivation(HEAD + text)


def unheard(level: Level, message: str) -> None:
    pass


def open_session(spec: DerivationSpec, log: Log = unheard, path: str = ":memory:") -> TypeScriptSession:
    return TypeScriptConnector().open(spec, apsw.Connection(path), log)


def invoke(
    session: TypeScriptSession, documents: Sequence[Document], transforms: Sequence[int] | None = None
) -> list[tuple[int, Document]]:
    count = len(documents)
    clocks = [CLOCK] * count
    return list(session.invoke(ReadBatch(transforms or [0] * count, clocks, clocks, documents)))


def run(spec: DerivationSpec, documents: Sequence[Document]) -> list[tuple[int, Document]]:
    session = open_session(spec)
    try:
        return invoke(session, documents)
    finally:
        session.close()
