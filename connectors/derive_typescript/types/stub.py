"""Stub of a module that a catalog names and that does not exist yet."""

from __future__ import annotations

from collections.abc import Collection

from connectors.derive_typescript.catalog.config import module_of
from connectors.derive_typescript.types.interfaces import method_of, source_of
from connectors.derive_typescript.types.literals import member
from derive.protocol.authoring import GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec


def module_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """Return the stub of the derivation's module, if it is missing.

    Args:
        spec: the derivation.
        missing: absolute paths.
    """
    return stub_file(module_of(spec), missing, module_stub(spec))


def module_stub(spec: DerivationSpec) -> str:
    """Return a class with a method for each transform, all unimplemented."""
    imported = ["Document", "IDerivation", *(source_of(transform.name) for transform in spec.transforms)]
    names = f" {', '.join(imported)} "
    if len(names) > 80:
        names = "".join(f"\n    {name}," for name in imported) + "\n"
    methods = [
        f"    {member(method_of(transform.name))}(read: {{ doc: {source_of(transform.name)} }}): Document[] {{\n"
        "        throw new Error('Not implemented');\n"
        "    }\n"
        for transform in spec.transforms
    ]
    return (
        f"import {{{names}}} from 'flow/{spec.name}.ts';\n\n"
        f"// Implementation for derivation {spec.name}.\n"
        f"export class Derivation extends IDerivation {{\n{chr(10).join(methods)}}}\n"
    )
