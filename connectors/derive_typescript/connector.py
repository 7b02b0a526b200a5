"""The connector: type-checks a derivation's module, and opens sessions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.derive_typescript.check import check_modules, check_names
from connectors.derive_typescript.runtime.prepared import cache_modules
from connectors.derive_typescript.runtime.session import TypeScriptSession
from connectors.derive_typescript.types.deno_json import extend_settings
from connectors.derive_typescript.types.interfaces import generate_interfaces
from connectors.derive_typescript.types.stub import module_stubs
from derive.errors import Issue
from derive.protocol.derive import GENERATED_FOLDER, GeneratedFile, Generation, Log
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw


class TypeScriptConnector:
    """Derivations in TypeScript."""

    def check(self, specs: Sequence[DerivationSpec]) -> list[Issue]:
        """Check modules against the types of their collections.

        Issues are E531 (what `deno check` reports) and E532 (a transform that no method can implement).
        """
        wrong_names = [check_names(spec) for spec in specs]
        sound = [spec for spec, wrong in zip(specs, wrong_names, strict=True) if not wrong]
        return [*chain(*wrong_names), *check_modules(sound)]

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> TypeScriptSession:
        """A session; Deno starts with the first batch."""
        return TypeScriptSession(spec, database, log)

    def generate(self, spec: DerivationSpec, root: Path, missing: Collection[str]) -> Generation:
        """The interfaces module, the project's `deno.json`, and a stub of the module.

        Raises:
            FlowError: a `deno.json` is there and cannot be read.
        """
        settings = extend_settings(root, spec.settings)
        notes = [] if settings.note is None else [settings.note]
        files = []
        if {".", ".."} & set(spec.name.split("/")):
            notes.append(f"'{spec.name}' gets no file of types: '.' and '..' are no names of folders")
        else:
            interfaces = root / GENERATED_FOLDER / "typescript" / f"{spec.name}.ts"
            files.append(GeneratedFile(interfaces, generate_interfaces(spec)))
        if settings.text is not None:
            files.append(GeneratedFile(settings.path, settings.text))
        files += module_stubs(spec, missing)
        return Generation(tuple(files), tuple(notes))

    def cache(self, spec: DerivationSpec) -> list[str]:
        """Fetch the libraries that the module imports.

        Raises:
            TaskError: one cannot be fetched.
        """
        return cache_modules(spec)
