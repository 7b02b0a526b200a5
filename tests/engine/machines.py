"""Machines that share nothing, on one machine: each has its own network, file system, name and boot.

A machine is a process with namespaces of its own. Its network is a cable (a veth pair) to a bridge, which can be cut. Its
view of the file system lacks the folders that the test hides from it, and `/mnt` is its own. Servers of the test get an
address on the bridge by a relay.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

_NETWORK = "10.77.0"
_CLONE_NEWNET = 0x40000000
_WAIT = "exec sleep infinity"


def can_make_machines() -> bool:
    """Return whether this user may make networks; only root may."""
    return os.geteuid() == 0 and not subprocess.run(["unshare", "-n", "true"], check=False).returncode


class Network:
    """A bridge, and the machines on it.

    Args:
        folder: folder for files of the machines.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends = ExitStack()
        self._names = {"localhost": "127.0.0.1"}
        self._keeper = keep(["unshare", "--net"], self._ends)
        self.run("ip link add bridge type bridge && ip link set bridge up && ip link set lo up")
        self.run(f"ip addr add {_NETWORK}.1/24 dev bridge")

    def close(self) -> None:
        """End all machines and relays."""
        self._ends.close()

    def run(self, script: str) -> None:
        """Run a script of the shell at the bridge."""
        command = ["nsenter", f"--net=/proc/{self._keeper}/ns/net", "sh", "-ec", script]
        subprocess.run(command, check=True)

    def machine(self, name: str, number: int, hidden: Sequence[Path] = (), setup: str = "") -> Machine:
        """Begin a machine.

        Args:
            name: its name.
            number: last number of its address.
            hidden: folders that it does not have.
            setup: a script of the shell that runs before they are hidden; `/mnt` is the machine's own folder.
        """
        address = f"{_NETWORK}.{number}"
        self._names[name] = address
        (self.folder / "hosts").write_text("".join(f"{ip} {host}\n" for host, ip in self._names.items()))
        (self.folder / f"{name}.boot").write_text(f"{uuid4()}\n")
        script = f"hostname {name}; mount -t tmpfs none /mnt; touch /mnt/hosts /mnt/boot; {setup}\n"
        script += f"cat {self.folder}/{name}.boot > /mnt/boot; mount --bind /mnt/boot /proc/sys/kernel/random/boot_id\n"
        script += f"cat {self.folder}/hosts > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts\n"
        script += "".join(f"test ! -d '{folder}' || mount -t tmpfs none '{folder}'\n" for folder in hidden)
        pid = keep(["unshare", "--net", "--mount", "--uts"], self._ends, script)
        self.run(f"ip link add to-{name} type veth peer name cable netns {pid}; ip link set to-{name} master bridge up")
        machine = Machine(self, name, address, pid)
        machine.call("ip link set lo up; ip link set cable up")
        machine.call(f"ip addr add {address}/24 dev cable")
        self._ends.callback(machine.kill)
        return machine

    def serve(self, number: int, port: int, target: int) -> str:
        """Relay connections at an address of the bridge to a port of this process's own network; return `HOST:PORT`."""
        address = f"{_NETWORK}.{number}"
        self.run(f"ip addr add {address}/24 dev bridge")
        listener = self._listen(address, port)
        self._ends.callback(listener.close)
        self._ends.callback(listener.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=_accept, args=(listener, target), daemon=True).start()
        return f"{address}:{port}"

    def _listen(self, address: str, port: int) -> socket.socket:
        """Return a socket in the network of the bridge: a thread enters the network, and only its new sockets are there."""
        made: list[socket.socket] = []

        def enter() -> None:
            with Path(f"/proc/{self._keeper}/ns/net").open("rb") as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET) == 0
            made.append(socket.create_server((address, port)))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return made[0]


class Machine:
    """A machine.

    Attributes:
        name: its name.
        address: its address.
    """

    def __init__(self, network: Network, name: str, address: str, pid: int) -> None:
        self._network = network
        self.name = name
        self.address = address
        self._pid = pid
        self._programs: list[subprocess.Popen[bytes]] = []

    def enter(self, command: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs another one on this machine."""
        return ["nsenter", f"--target={self._pid}", "--net", "--mount", "--uts", "--", *command]

    def call(self, script: str) -> None:
        """Run a script of the shell."""
        subprocess.run(self.enter(["sh", "-ec", script]), check=True)

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a program, whose output is in a file of the network's folder."""
        with self.log.open("ab") as log:
            program = subprocess.Popen(
                self.enter(command), env=environment, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._programs.append(program)
        return program

    @property
    def log(self) -> Path:
        """The file with the output of programs."""
        return self._network.folder / f"{self.name}.log"

    def cut(self) -> None:
        """Cut the cable."""
        self._network.run(f"ip link set to-{self.name} down")

    def heal(self) -> None:
        """Repair the cable."""
        self._network.run(f"ip link set to-{self.name} up")

    def kill(self) -> None:
        """Kill all programs of the machine; its files and its cable stay."""
        own = os.stat(f"/proc/{self._pid}/ns/net").st_ino
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.stat(process / "ns/net").st_ino == own and int(process.name) != self._pid:
                    os.kill(int(process.name), signal.SIGKILL)
        for program in self._programs:
            program.wait()


def keep(unshare: Sequence[str], ends: ExitStack, setup: str = "") -> int:
    """Start a process that keeps namespaces until the end, and return its id once a script of the shell has run."""
    process = subprocess.Popen(
        [*unshare, "sh", "-ec", f"{setup}\necho ready\n{_WAIT}"], stdout=subprocess.PIPE, start_new_session=True
    )
    ends.callback(process.wait)
    ends.callback(process.kill)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"ready\n"
    return process.pid


def _accept(listener: socket.socket, target: int) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", target))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_relay, args=pair, daemon=True).start()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 18):
            target.sendall(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()
