"""A session of a TypeScript module in Deno."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from connectors.derive_typescript.author_files import method_of
from connectors.derive_typescript.config import module_of, refusal_of
from connectors.derive_typescript.runtime.deno_process import DenoProcess
from connectors.derive_typescript.runtime.project import authored, digest_of, member_position, position_in
from connectors.module_kit.session import Language, ModuleSession
from derive.position import Position
from derive.protocol.derive import Log
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

_FETCH = "fetch libraries ahead of time: flowctl generate --cache"


class TypeScriptSession(ModuleSession):
    """Methods of a derivation's class, running under Deno.

    Args:
        spec: the derivation.
        database: the shard's database, inside an open transaction.
        log: receives the module's messages.
    """

    language: ClassVar[Language] = Language(
        name="TypeScript",
        runtime="Deno",
        state_table="flow_typescript",
        commit_method="startCommit",
        timeout_option="--deno-timeout",
        log_hint="write to the task's log with 'console'",
    )

    def __init__(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> None:
        super().__init__(spec, database, log, module_of(spec), digest_of(spec), refusal_of(spec))

    def _start(self) -> DenoProcess:
        return DenoProcess(self._spec, self._digest)

    def _time_limit(self) -> float:
        return self._spec.limits.answer_seconds

    def _method_of(self, transform: str) -> str:
        return method_of(transform)

    def _member_position(self, name: str) -> Position:
        return member_position(self._module, name)

    def _position_in(self, text: str) -> Position | None:
        return position_in(self._module, text)

    def _authored(self, text: str) -> str:
        return authored(self._module, text)

    def _hint_of(self, message: str) -> str | None:
        return _FETCH if "--cached-only" in message else None
