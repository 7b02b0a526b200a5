"""The connector: type-checks a derivation's module, and opens sessions.

Every catalog needs the configuration schema of every connector, so all other modules are imported only when used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.derive_typescript.config import SCHEMA, TypeScriptConfig, config_of, module_of, refusal_of
from connectors.derive_typescript.loader import load_config
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.protocol.authoring import GENERATED_FOLDER, CatalogFiles, GeneratedFile, Generation, LocatedValue
from derive.protocol.derive import Log, SharedCode
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

    from connectors.derive_typescript.runtime.session import TypeScriptSession


class TypeScriptConnector:
    """Derivations in TypeScript."""

    def config_schema(self) -> JSON:
        """Return the JSON Schema of the value below `typescript`."""
        return SCHEMA

    def configure(self, at: LocatedValue, files: CatalogFiles) -> TypeScriptConfig | None:
        """Return the configuration with the module and its files."""
        return load_config(at, files)

    def config_type(self) -> type[TypeScriptConfig]:
        """Return the class of configurations."""
        return TypeScriptConfig

    def check(self, specs: Sequence[DerivationSpec]) -> list[Issue]:
        """Check modules against the types of their collections.

        Issues are E531 (errors of `deno check`) and E532 (a transform that no method can implement).
        """
        from connectors.derive_typescript.check import SoundModules, check_modules, check_names
        from connectors.derive_typescript.runtime.command import cache_folder

        wrong_names = [check_names(spec) for spec in specs]
        sound = [spec for spec, wrong in zip(specs, wrong_names, strict=True) if not wrong]
        return [*chain(*wrong_names), *check_modules(sound, SoundModules(cache_folder()))]

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Return whether the module mentions `startCommit`; a session checks the class itself."""
        return "startCommit" in module_of(spec).text

    def state_views(self) -> Mapping[str, str]:
        """Return the properties of the state as a table, with a row for each entry of a property that is an object."""
        from connectors.module_kit.state import state_view

        return {"state": state_view("flow_typescript")}

    def shared_code(self, spec: DerivationSpec) -> SharedCode:
        """Return the module, with the files that it imports."""
        config = config_of(spec)
        files = sorted(f"{file.path}\0{file.content!r}" for file in config.imports if file.content is not None)
        return SharedCode("module", "\0".join([config.module.text, *files]), config.module.position)

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """Return an issue if the module asks for permissions that the run does not grant."""
        return refusal_of(spec)

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> TypeScriptSession:
        """Open a session; Deno starts with the first batch."""
        from connectors.derive_typescript.runtime.session import TypeScriptSession

        return TypeScriptSession(spec, database, log)

    def start_ahead(self, spec: DerivationSpec) -> None:
        """Start Deno with the module of a derivation, for the next session that opens without a state."""
        from connectors.derive_typescript.runtime.deno_process import start_ahead

        start_ahead(spec)

    def generate(self, spec: DerivationSpec, root: Path, missing: Collection[str]) -> Generation:
        """Return the interfaces module, the project's `deno.json`, and a stub of the module.

        Raises:
            FlowError: the existing `deno.json` cannot be read.
        """
        from connectors.derive_typescript.author_files import generate_interfaces, module_stubs, settings_of

        settings = settings_of(root, config_of(spec).settings)
        notes = [] if settings.note is None else [settings.note]
        files = []
        if {".", ".."} & set(spec.name.split("/")):
            notes.append(f"no file of types is written for '{spec.name}': no folder can have the name '.' or '..'")
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
            TaskError: a library cannot be fetched.
        """
        from connectors.derive_typescript.runtime.project import cache_modules

        return cache_modules(spec)
