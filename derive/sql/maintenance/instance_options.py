"""The compute instances that a server is to have, as its options name them, and the processes that it starts for them.

What a process of a replica is started with is all that is imported here: replicas get ready while the server does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from derive.compute.protocol.transport import OPEN, Security
from derive.durable import make_folders
from derive.materialize.process import installed_env
from derive.sql.maintenance.controller.process import ReplicaProcess

PROCESSES = "compute"
"""In the data folder, of instances that are processes of their own."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of a controller; without any, there is one in this process.

    Attributes:
        replicas: how many processes this one starts.
        command: of such a process, which keeps what it has in a folder, and knows this one by the token in a file; None
            where there can be none.
        tell: is told what these write to standard error, line by line.
        addresses: `host:port` of those that others have started.
        security: how the latter know this process.
        started: by name, processes that are there already and that no controller has yet.
    """

    replicas: int = 0
    command: Callable[[Path, Path], Sequence[str]] | None = None
    tell: Callable[[str], None] = lambda line: None
    addresses: tuple[str, ...] = ()
    security: Security = OPEN
    started: dict[str, ReplicaProcess] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the replicas that are processes of this one."""
        return [f"r{number}" for number in range(1, self.replicas + 1)]

    def start(self, root: Path) -> None:
        """Start the first of the processes that options ask for, before there is a controller.

        One is enough for answers; others would take processors from it, and from this process, while clients wait.

        Args:
            root: the data folder, which this process owns.
        """
        for name in self.names[:1]:
            self.started[name] = self._start(root, name)

    def process(self, root: Path, name: str) -> ReplicaProcess:
        """A process that is a replica: one that was started, or a new one. Whoever calls this closes it."""
        return self.started.pop(name, None) or self._start(root, name)

    def close(self) -> None:
        """End processes that no controller has come to have."""
        while self.started:
            self.started.popitem()[1].close()

    def _start(self, root: Path, name: str) -> ReplicaProcess:
        """Start a process that is a replica, which nobody but this one can tell anything."""
        assert self.command is not None
        folder = root / PROCESSES / name
        make_folders(folder)
        token, token_file = secrets.token_urlsafe(), folder / "token"
        token_file.unlink(missing_ok=True)
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        return ReplicaProcess(
            name,
            self.command(folder, token_file),
            installed_env(),
            folder,
            Security(token),
            tell=self.tell,
            report=lambda death: _log(root, f"{death}; it is started again"),
        )


HERE = Instances()
"""One, in this process."""


def _log(root: Path, error: str) -> None:
    from derive.sql.maintenance.recording import LOG
    from derive.storage.task_log import TaskLog

    TaskLog(root, LOG).write("error", error)
