"""Derivations in Python made of a few lines, and what their methods publish."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import apsw

from connectors.derive_python import PythonConnector
from connectors.derive_python.config import PythonConfig
from connectors.derive_python.runtime.session import PythonSession
from derive.document.pointer import JSON
from derive.position import Position, Script
from derive.protocol.derive import Level, Log, ReadBatch
from derive.protocol.specs import CollectionSpec, DerivationSpec, Document, InputSpec, ShuffleSpec, TransformSpec

AT = Position("flow.yaml", 3, 5)
MODULE_AT = Position("acme.py")
CLOCK = 1_700_000_000_123_456  # 2023-11-14T22:13:20.123456Z
HEAD = "from typing import Any\nfrom acme.out import Document, IDerivation, Request, Response, ConnectorState\n"


def collection(name: str, schema: JSON) -> CollectionSpec:
    return CollectionSpec(name, ("/id",), (0,), schema, schema, (), AT)


def transform(name: str, index: int, source: str) -> TransformSpec:
    shuffle = ShuffleSpec("key", ("/id",), (0,), ("integer",))
    return TransformSpec(InputSpec(index, name, source, AT), shuffle)


def derivation(text: str, *transforms: str, schema: JSON = True, **config: Any) -> DerivationSpec:
    source = collection("acme/in", schema)
    names = transforms or ("fromIn",)
    return DerivationSpec(
        collection("acme/out", schema),
        "python",
        PythonConfig(Script(text, text, MODULE_AT), "acme_module.py", **config),
        tuple(transform(name, index, "acme/in") for index, name in enumerate(names)),
        {"acme/in": source},
        1_000_000,
    )


def lambdas(body: str, members: str = "", head: str = "", **config: Any) -> DerivationSpec:
    """A derivation whose one method has this body, on line 5 without a head and other members."""
    text = f"{HEAD}{head}class Derivation(IDerivation):\n{textwrap.indent(textwrap.dedent(members), '    ')}"
    method = f"    def from_in(self, read: Any) -> Any:\n{textwrap.indent(textwrap.dedent(body), '        ')}\n"
    return derivation(text + method, **config)


def unheard(level: Level, message: str) -> None:
    pass


def open_session(spec: DerivationSpec, log: Log = unheard, path: str = ":memory:") -> PythonSession:
    return PythonConnector().open(spec, apsw.Connection(path), log)


def invoke(
    session: PythonSession, documents: Sequence[Document], transforms: Sequence[int] | None = None
) -> list[tuple[int, Document]]:
    count = len(documents)
    clocks = [CLOCK] * count
    return list(session.invoke(ReadBatch(transforms or [0] * count, clocks, clocks, documents)))


def run(spec: DerivationSpec, documents: Sequence[Document], log: Log = unheard) -> list[tuple[int, Document]]:
    session = open_session(spec, log)
    try:
        return invoke(session, documents)
    finally:
        session.close()
