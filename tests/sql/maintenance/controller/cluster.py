"""A server of SQL and instances of compute, each a process that can be killed, stopped, and ended at a failpoint."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from subprocess import PIPE

import apsw
from forked_flowctl import Flowctl, owned_by
from patience import PATIENCE_SECONDS
from proxy import Network, Proxy
from sql_world import lapse
from torture_sql import Server

from derive.compute.dataflow.database import NAME
from derive.sql.maintenance.controller.remote import PROCESSES
from derive.storage.store import Store

_STOPPED_SECONDS = 15
"""For so long what is stopped may keep others from starting."""


def eventually(what: str, is_so: Callable[[], object]) -> None:
    """Wait until something is so.

    Raises:
        SystemExit: it is not, after a long time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain until {what}")
        time.sleep(0.05)


class Process:
    """A process of `flowctl` that prints an address, through its deaths.

    Args:
        command: what follows `flowctl`.
        log: where standard error goes.
        thaw: called when it does not start, as one that is stopped may keep the database of metadata to itself.

    Attributes:
        process: that runs, or has ended.
        was_ended: whether a failpoint has ended it before it listened, so that it was started again.
    """

    def __init__(self, command: Sequence[str], log: Path, thaw: Callable[[], None]) -> None:
        self._command, self._log, self._thaw = command, log, thaw
        self.process: Flowctl | None = None
        self.was_ended = False

    def start(self, failpoint: str = "") -> int:
        """Start it; the port at which it listens.

        Args:
            failpoint: ends or stops it, maybe before it listens: then it is started again without, or goes on.
        """
        self.was_ended = False
        environment = os.environ | {"FLOW_FAILPOINT": failpoint}
        with self._log.open("a") as log:
            self.process = Flowctl(self._command, stdin=PIPE, stdout=PIPE, stderr=log, text=True, env=environment)
        assert self.process.stdout
        begin = time.monotonic()
        while not select.select([self.process.stdout], [], [], 0.05)[0]:
            waited = time.monotonic() - begin
            if waited > PATIENCE_SECONDS:
                raise SystemExit(f"{self._command} does not start, see {self._log}")
            if waited > _STOPPED_SECONDS:
                self._thaw()
            if self.state() == "T":
                self.signal(signal.SIGCONT)
        address = self.process.stdout.readline().strip()
        if not address and failpoint:
            self.kill()
            port = self.start()
            self.was_ended = True
            return port
        if not address:
            raise SystemExit(f"{self._command} does not start: {self._log.read_text()[-2000:]}")
        return int(address.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def state(self) -> str:
        """`T` if it is stopped, `Z` if it has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            return "Z"
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2][0]


class ComputeInstance:
    """`flowctl compute`, and the proxy through which controllers reach it.

    Attributes:
        name: for those who look.
        proxy: in front of it.
        folder: where it keeps what it has.
        process: of it.
    """

    def __init__(
        self, number: int, data: Path, network: Network, chance: random.Random, thaw: Callable[[], None]
    ) -> None:
        self.name, self.folder = f"instance {number}", data.parent / f"instance-{number}"
        self.proxy = Proxy(network, chance)
        command = ["compute", "--data", str(data), "--folder", str(self.folder), "--end-with-input"]
        log = data.parent / f"instance-{number}.log"
        self.process = Process([*command, "--listen", "127.0.0.1:0"], log, thaw)

    def start(self, failpoint: str = "") -> None:
        """Start it, maybe with a failpoint."""
        self.proxy.target = self.process.start(failpoint)

    def forget(self) -> None:
        """Lose what it keeps."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster(Server):
    """A server whose instances are processes.

    Attributes:
        instances: those that this has started; none if the server starts its own.
    """

    def __init__(self, folder: Path, network: Network, chance: random.Random) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.data.mkdir()
        self._everything = [ComputeInstance(number, self.data, network, chance, self.thaw) for number in range(3)]
        self._left_behind: list[Process] = []
        self.instances: list[ComputeInstance] = []
        self._options: list[str] = []
        self.server = self._new_server()
        self.replicas = 0

    def _new_server(self) -> Process:
        where = ["--listen", "127.0.0.1:0", "--data", str(self.data)]
        return Process(["sql", "serve", *where, *self._options], self.data.parent / "server.log", self.thaw)

    def thaw(self) -> None:
        """Let everything that is stopped go on."""
        for process in (self.server, *self._left_behind, *(instance.process for instance in self._everything)):
            if process.process is not None:
                process.signal(signal.SIGCONT)
        for child in self.children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def arrange(self, instances: int, replicas: int) -> None:
        """Have the next server use so many instances, and start so many replicas."""
        for instance in self._everything:
            instance.process.kill()
        self.instances, self.replicas = self._everything[:instances], replicas
        for instance in self.instances:
            instance.start()
        addresses = (f"--instance=127.0.0.1:{instance.proxy.port}" for instance in self.instances)
        self._options = [*addresses, f"--replicas={replicas}"]
        self.server = self._new_server()

    def start(self, failpoint: str = "") -> None:
        port = self.server.start(failpoint)
        self.lives += 1
        self.port = port

    def kill(self) -> None:
        children = self.children()
        self.server.kill()
        for child in children:  # one that is stopped, by a failpoint of the server's, does not see that it is to end
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def close(self) -> None:
        """End everything."""
        self.kill()
        for instance in self._everything:
            instance.process.kill()

    def leave_behind(self) -> Process:
        """Take the server for dead, though it is only stopped, and start another one; that of before."""
        old = self.server
        old.signal(signal.SIGSTOP)
        self._left_behind = [old]
        lapse(self.data)
        self.server = self._new_server()
        self.start()
        return old

    def children(self) -> list[int]:
        """Processes of replicas that the server has started."""
        process = self.server.process
        if process is None:
            return []
        return owned_by(process.pid)

    def folders(self) -> list[Path]:
        """Where instances keep what they have."""
        own = [self.data / PROCESSES / f"r{number + 1}" for number in range(self.replicas)]
        return [*(instance.folder for instance in self.instances), *own]

    def wanted(self) -> set[int]:
        """Identifiers of views and indexes that instances are to have."""
        with closing(Store(self.data, reading=True)) as store:
            return {*store.task_capabilities.dataflows("view"), *store.task_capabilities.dataflows("index")}


def dataflows_in(folder: Path) -> set[int]:
    """Identifiers of the dataflows that an instance has."""
    try:
        with closing(apsw.Connection(str(folder / NAME), flags=apsw.SQLITE_OPEN_READONLY)) as database:
            return {int(str(id_)) for (id_,) in database.execute("SELECT id FROM definitions").fetchall()}
    except apsw.Error:  # it is only just being made
        return set()
