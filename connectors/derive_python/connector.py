"""The connector: type-checks a derivation's module, and opens sessions.

Every catalog needs the configuration schema of every connector, so all other modules are imported only when used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.derive_python.config import SCHEMA, PythonConfig, config_of, module_of, refusal_of
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.protocol.authoring import GENERATED_FOLDER, CatalogFiles, GeneratedFile, Generation, LocatedValue, stub_file
from derive.protocol.derive import Log, SharedCode
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

    from connectors.derive_python.runtime.session import PythonSession


class PythonConnector:
    """Derivations in Python."""

    def config_schema(self) -> JSON:
        """Return the JSON Schema of the value below `python`."""
        return SCHEMA

    def configure(self, at: LocatedValue, files: CatalogFiles) -> PythonConfig | None:
        """Return the configuration with the module and its files."""
        from connectors.derive_python.loader import load_config

        return load_config(at, files)

    def config_type(self) -> type[PythonConfig]:
        """Return the class of configurations."""
        return PythonConfig

    def check(self, specs: Sequence[DerivationSpec]) -> list[Issue]:
        """Check modules against the types of their collections.

        Issues are E531 (errors of types and syntax), E532 (a transform that no method can implement), E536 (an
        environment that is not built), and E018 (a `config` that is not valid under its schema).
        """
        from connectors.derive_python.check import check_config, check_environment, check_modules, check_names

        wrong = [[*check_names(spec), *check_config(spec), *check_environment(spec)] for spec in specs]
        sound = [spec for spec, issues in zip(specs, wrong, strict=True) if not issues]
        return [*chain(*wrong), *check_modules(sound)]

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Return whether the module mentions `state` or `start_commit`."""
        from connectors.derive_python.runtime.project import keeps_state

        return keeps_state(config_of(spec))

    def state_views(self) -> Mapping[str, str]:
        """Return the values of keys, and the state of the module, as tables."""
        from connectors.derive_python.runtime.session import KEYED_TABLE, STATE_TABLE
        from connectors.module_kit.state import state_view

        keys = f"SELECT json_extract(key, '$[0]') AS key, key AS keys, state FROM {{schema}}.{KEYED_TABLE}"
        return {"state": state_view(STATE_TABLE), "keys": keys}

    def divide_state(self, database: apsw.Connection, is_owned: Callable[[Sequence[JSON]], bool]) -> None:
        """Delete the values of `self.state` for keys of other shards."""
        from connectors.derive_python.runtime.session import divide_keys

        divide_keys(database, is_owned)

    def shared_code(self, spec: DerivationSpec) -> SharedCode:
        """Return the module, with the files that it imports."""
        config = config_of(spec)
        files = [f"{file.path}\0{file.content!r}" for file in config.files]
        return SharedCode("module", "\0".join([config.module.text, *files]), config.module.position)

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """Return an issue if the module asks for permissions that the run does not grant."""
        return refusal_of(spec)

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> PythonSession:
        """Open a session; the process starts with the first batch."""
        from connectors.derive_python.runtime.session import PythonSession

        return PythonSession(spec, database, log)

    def start_ahead(self, spec: DerivationSpec) -> None:
        """Start Python for the next session of a derivation that opens without a state."""
        from connectors.derive_python.runtime.python_process import start_ahead

        start_ahead(spec)

    def arrays_read(self, spec: DerivationSpec) -> list[list[str]] | None:
        """Return the fields that methods with `@arrow` take; None if a method takes documents."""
        from connectors.derive_python.columns import arrays_read
        from connectors.derive_python.models import method_of

        return arrays_read(spec, {method_of(transform.name) for transform in spec.transforms})

    def generate(self, spec: DerivationSpec, root: Path, missing: Collection[str]) -> Generation:
        """Return the package of types, and a stub of the module."""
        from connectors.derive_python.models import generate_package, module_stub, package_of

        if {".", ".."} & set(spec.name.split("/")):
            note = f"no file of types is written for '{spec.name}': no folder can have the name '.' or '..'"
            return Generation((), (note,))
        package = root / GENERATED_FOLDER / "python" / package_of(spec.name).replace(".", "/") / "__init__.py"
        files = [GeneratedFile(package, generate_package(spec, config_of(spec).config_schema, config_of(spec).models))]
        files += stub_file(module_of(spec), missing, module_stub(spec))
        return Generation(tuple(files))

    def cache(self, spec: DerivationSpec) -> list[str]:
        """Fetch nothing: `build_environment` fetches libraries."""
        return []

    def build_environment(self, spec: DerivationSpec) -> str | None:
        """Build the environment that the module's pyproject.toml declares, unless it exists."""
        from connectors.derive_python.build_environment import build_environment

        return build_environment(config_of(spec))

    def pack_libraries(self, spec: DerivationSpec) -> Path | None:
        """Return an archive of the module's environment; None if the module has none of its own."""
        from connectors.derive_python.build_environment import pack_environment

        return pack_environment(config_of(spec))

    def unpack_libraries(self, spec: DerivationSpec, archive: Path) -> None:
        """Make the module's environment on this machine from an archive, unless it exists."""
        from connectors.derive_python.build_environment import unpack_environment

        unpack_environment(config_of(spec), archive)
