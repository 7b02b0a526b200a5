"""The connector: type-checks a derivation's module, and opens sessions."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from connectors.derive_typescript.project import deno, environment, write_project
from connectors.derive_typescript.session import TypeScriptSession, position_in
from derive.errors import Issue
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

_ERROR = re.compile(r"^(?:(?:TS\d+ )?\[ERROR\]|error:)[: ]*(.*?)$(.*?)(?=^(?:TS\d+ \[ERROR\]|error:|Found \d+)|\Z)", re.M | re.S)


class TypeScriptConnector:
    """Derivations in TypeScript."""

    def check(self, spec: DerivationSpec) -> list[Issue]:
        """Type-check the module against the types of its collections, with `deno check`."""
        assert spec.module is not None
        folder = write_project(spec)
        try:
            run = subprocess.run(
                [deno(), "check", "--no-remote", "--quiet", "module.ts"],
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if run.returncode == 0:
            return []
        issues = [
            Issue("E531", found[1].strip(), position_in(spec.module, found[2])) for found in _ERROR.finditer(run.stderr)
        ]
        return issues or [Issue("E531", run.stderr.strip()[-500:], spec.module.position)]

    def open(self, spec: DerivationSpec, database: apsw.Connection) -> TypeScriptSession:  # noqa: ARG002
        """A session; Deno starts with the first batch."""
        return TypeScriptSession(spec)
