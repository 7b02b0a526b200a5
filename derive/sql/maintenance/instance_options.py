"""The compute instances that the options of a server name, and the replica processes that the server starts.

This module imports only modules that the start of a replica process needs, because replicas start while the server
starts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from derive.compute.protocol.transport import OPEN, Security
from derive.durable import make_folders
from derive.materialize.process import installed_env
from derive.sql.maintenance.controller.remote import ReplicaProcess

PROCESSES = "compute"
"""Folder of replica processes, in the data folder."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of a controller; by default, one instance in this process.

    Attributes:
        replicas: number of replica processes that this process starts.
        command: returns the command of a replica process for its folder and a file with its token; None if replica
            processes cannot be started.
        log: function that takes the lines that these processes write to standard error.
        addresses: `host:port` of external replicas.
        security: credentials for the external replicas.
        started: started processes without a controller, by name.
    """

    replicas: int = 0
    command: Callable[[Path, Path], Sequence[str]] | None = None
    log: Callable[[str], None] = lambda line: None
    addresses: tuple[str, ...] = ()
    security: Security = OPEN
    started: dict[str, ReplicaProcess] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of the replica processes of the options."""
        return [f"r{number}" for number in range(1, self.replicas + 1)]

    def start(self, root: Path) -> None:
        """Start the first replica process before a controller exists.

        One process is enough for answers; more processes would compete for processors while clients wait.

        Args:
            root: the data folder, which this process owns.
        """
        for name in self.names[:1]:
            self.started[name] = self._start(root, name)

    def process(self, root: Path, name: str) -> ReplicaProcess:
        """Return a replica process, started if necessary; the caller closes it."""
        return self.started.pop(name, None) or self._start(root, name)

    def close(self) -> None:
        """End the started processes without a controller."""
        while self.started:
            self.started.popitem()[1].close()

    def _start(self, root: Path, name: str) -> ReplicaProcess:
        """Start a replica process, with a token that only this process knows."""
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
            log=self.log,
            report=lambda death: _log(root, f"{death}; the replica is restarted"),
        )


HERE = Instances()
"""One instance, in this process."""


def _log(root: Path, error: str) -> None:
    from derive.sql.maintenance.recording import LOG
    from derive.storage.task_log import TaskLog

    TaskLog(root, LOG).write("error", error)
