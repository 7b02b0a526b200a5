"""Modules of Python and TypeScript for derivations of random catalogs: they count the documents of each key.

A catalog names a module and its variant; the text of the module follows from the catalog. So an edit is undone by the
former catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectors.derive_python.models import method_of, package_of

_PYTHON = """
from PACKAGE import Document, IDerivation


class Derivation(IDerivation):
"""
_PYTHON_METHOD = """
    def METHOD(self, read):
        doc, values = read.doc, self.state
        values["n"] = values.get("n", 0) + 1
        return [Document(k=doc.k, v=doc.v + VARIANT, w=values["n"])]
"""
_TYPESCRIPT = """
// deno-lint-ignore-file no-explicit-any
import { Document, IDerivation } from 'flow/NAME.ts';

type Counts = Record<string, number>;

export class Derivation extends IDerivation {
    counts: Counts;
    changed: Counts = {};

    constructor(open: { state: Counts }) {
        super(open);
        this.counts = open.state;
    }

    startCommit() {
        const updated = this.changed;
        this.changed = {};
        return { state: { updated, mergePatch: true } };
    }
"""
_TYPESCRIPT_METHOD = """
    METHOD({ doc }: any): Document[] {
        const n = this.counts[doc.k] = this.changed[doc.k] = (this.counts[doc.k] ?? 0) + 1;
        return [{ k: doc.k, v: doc.v + VARIANT, w: n }];
    }
"""


def module_of(language: str, name: str, variant: int) -> str:
    """Return the path of a module, relative to the catalog."""
    suffix = "py" if language == "python" else "ts"
    return f"{name.replace('/', '_')}_{variant}.{suffix}"


def variant_of(path: str) -> int:
    """Return the variant of a module: the number that it adds to each value."""
    return int(path.rpartition("_")[2].partition(".")[0])


def write_modules(folder: Path, collections: Mapping[str, Any]) -> None:
    """Write the modules that a catalog names."""
    for name, collection in collections.items():
        for language, config in collection.get("derive", {}).get("using", {}).items():
            if language in ("python", "typescript"):
                transforms = [transform["name"] for transform in collection["derive"]["transforms"]]
                (folder / config["module"]).write_text(_text(language, name, transforms, variant_of(config["module"])))


def _text(language: str, name: str, transforms: list[str], variant: int) -> str:
    if language == "python":
        head, method = _PYTHON.replace("PACKAGE", package_of(name)), _PYTHON_METHOD
        methods = [method.replace("METHOD", method_of(transform)) for transform in transforms]
        return "".join([head, *methods]).replace("VARIANT", str(variant))
    methods = [_TYPESCRIPT_METHOD.replace("METHOD", transform) for transform in transforms]
    return "".join([_TYPESCRIPT.replace("NAME", name), *methods, "}\n"]).replace("VARIANT", str(variant))
