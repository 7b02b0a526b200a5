"""What goes wrong with instances, their connections and the server: each is a block, at the end of which it is mended."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from cluster import Cluster, ComputeInstance, Process

OF_INSTANCES = (*("dataflow.committed", "dataflow.committing"), *("metadata.committed", "metadata.committing"))
OF_SERVERS = (
    *("dataflow.held", "metadata.committed", "metadata.committing"),
    *("segment.closed", "segment.closing", "segment.synced", "compaction.advanced", "compaction.replaced"),
)

_REACHED_SECONDS = 6.0
"""A failpoint that is not reached for so long is not waited for."""

Fault = Callable[[], AbstractContextManager[str]]
"""Begins something that goes wrong, and tells what it is."""


class Faults:
    """Faults of a cluster.

    Args:
        cluster: that they befall.
        chance: of what is possible.
        longest: seconds that pass at most before something is mended, or goes wrong besides.

    Attributes:
        reached: names of failpoints that were reached.
        spares: whether the faults that `some` has given last leave the server, and an instance, alone.
    """

    def __init__(self, cluster: Cluster, chance: random.Random, longest: float) -> None:
        self.cluster, self._chance, self._longest = cluster, chance, longest
        self.reached: set[str] = set()
        self.spares = False
        self._zombie: Process | None = None

    def some(self) -> list[Fault]:
        """One or two, of different processes, and maybe a replica that comes and goes."""
        victims: list[ComputeInstance | None] = [*self.cluster.instances]
        if self.cluster.replicas or self._chance.random() < 0.4:
            victims.append(None)
        chosen = self._chance.sample(victims, 2 if len(victims) > 1 and self._chance.random() < 0.4 else 1)
        self.spares = None not in chosen and len(chosen) < len(self.cluster.instances)
        faults = [self._of_server() if victim is None else self.of_instance(victim) for victim in chosen]
        return [self.added, *faults] if None not in chosen and self._chance.random() < 0.2 else faults

    def _of_server(self) -> Fault:
        """Something that goes wrong with the server, or with what it has started."""
        if self.cluster.replicas and self._chance.random() < 0.6:
            return self.child
        return self._chance.choice([self.killed_server, self.server_at_failpoint, self.stopped_server])

    def of_instance(self, instance: ComputeInstance) -> Fault:
        """Something that goes wrong with an instance, or on the way to it."""
        names = ["killed", "at_failpoint", "stopped", "cut", "refused", "held", "delayed"]
        (name,) = self._chance.choices(names, (2, 3, 2, 1, 1, 2, 1))
        fault: Callable[[ComputeInstance], AbstractContextManager[str]] = getattr(self, name)
        return lambda: fault(instance)

    @contextmanager
    def killed(self, instance: ComputeInstance) -> Iterator[str]:
        """It is killed, maybe with its disk, and comes back."""
        instance.process.kill()
        is_lost = self._chance.random() < 0.2
        if is_lost:
            instance.forget()
        yield f"{instance.name} is killed{' and forgets everything' if is_lost else ''}"
        instance.start()

    @contextmanager
    def at_failpoint(self, instance: ComputeInstance, failpoint: str = "") -> Iterator[str]:
        """It is killed or stopped at a failpoint, some time after it was started again."""
        failpoint = failpoint or self._failpoint(OF_INSTANCES)
        instance.process.kill()
        instance.start(failpoint)
        has_reached = self._has_reached(instance.process, failpoint)
        yield f"{instance.name} at {failpoint}{'' if has_reached else ', which is not reached'}"
        if instance.process.state() == "T":
            instance.process.signal(signal.SIGCONT)
        else:
            instance.process.kill()
            instance.start()

    @contextmanager
    def stopped(self, instance: ComputeInstance) -> Iterator[str]:
        """It is stopped for a while."""
        instance.process.signal(signal.SIGSTOP)
        yield f"{instance.name} is stopped"
        instance.process.signal(signal.SIGCONT)

    @contextmanager
    def cut(self, instance: ComputeInstance) -> Iterator[str]:
        """Its connection is reset."""
        instance.proxy.cut()
        yield f"{instance.name} is cut off"

    @contextmanager
    def refused(self, instance: ComputeInstance) -> Iterator[str]:
        """Nobody can connect to it."""
        instance.proxy.is_refusing = True
        instance.proxy.cut()
        yield f"connections to {instance.name} are refused"
        instance.proxy.is_refusing = False

    @contextmanager
    def held(self, instance: ComputeInstance) -> Iterator[str]:
        """What is sent does not arrive, for a while or never."""
        down, up = self._chance.choice([(True, True), (True, False), (False, True)])
        instance.proxy.hold(down=down, up=up)
        way = "to and from" if down and up else "to" if down else "from"
        yield f"nothing passes {way} {instance.name}"
        if self._chance.random() < 0.5:
            instance.proxy.cut()
        instance.proxy.release()

    @contextmanager
    def delayed(self, instance: ComputeInstance) -> Iterator[str]:
        """All that is sent takes time."""
        instance.proxy.delay = self._chance.choice([0.02, 0.1, 0.5])
        yield f"what passes to and from {instance.name} takes up to {instance.proxy.delay} s"
        instance.proxy.delay = 0.0

    @contextmanager
    def child(self) -> Iterator[str]:
        """A process that the server has started is killed, or stopped for a while."""
        children = self.cluster.children()
        if not children:
            yield "no replica runs"
            return
        process, number = self._chance.choice(children), self._chance.choice([signal.SIGKILL, signal.SIGSTOP])
        with suppress(ProcessLookupError):
            os.kill(process, number)
        yield f"replica {process} is sent {number.name}"
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)

    @contextmanager
    def killed_server(self) -> Iterator[str]:
        """The server is killed, and comes back."""
        self.cluster.kill()
        yield "the server is killed"
        self.cluster.start()

    @contextmanager
    def server_at_failpoint(self, failpoint: str = "") -> Iterator[str]:
        """The server is killed or stopped at a failpoint, some time after it was started again."""
        failpoint = failpoint or self._failpoint(OF_SERVERS)
        self.cluster.kill()
        self.cluster.start(failpoint)
        has_reached = self._has_reached(self.cluster.server, failpoint)
        yield f"the server at {failpoint}{'' if has_reached else ', which is not reached'}"
        if self.cluster.server.state() == "T":
            self.cluster.server.signal(signal.SIGCONT)
        else:
            self.cluster.kill()
            self.cluster.start()

    @contextmanager
    def stopped_server(self) -> Iterator[str]:
        """The server is stopped for a while."""
        self.cluster.server.signal(signal.SIGSTOP)
        yield "the server is stopped"
        self.cluster.server.signal(signal.SIGCONT)

    @contextmanager
    def added(self) -> Iterator[str]:
        """A client of the server has it start another replica, and end it again."""
        with self.cluster.connect() as connection:
            connection.execute("CREATE REPLICA spare")
            yield "a replica is created, and dropped in the end"
            connection.execute("DROP REPLICA spare")

    def pause(self) -> None:
        """Let some time pass."""
        time.sleep(self._chance.random() * (self._longest if self._chance.random() < 0.2 else 1.0))

    # Zombies

    def leave_zombie(self) -> None:
        """A server is taken for dead though it is not, and another one takes over."""
        self._zombie = self.cluster.leave_behind()

    def wake_zombie(self) -> bool:
        """Let a server that was taken for dead go on; whether there is one."""
        if self._zombie is None:
            return False
        self._zombie.signal(signal.SIGCONT)
        return True

    def bury_zombie(self) -> None:
        """End it for good."""
        if self._zombie is not None:
            self._zombie.kill()
            self._zombie = None

    def _failpoint(self, names: tuple[str, ...]) -> str:
        what = self._chance.choice(["", ":pause"])
        return f"{self._chance.choice(names)}:{self._chance.randint(1, 12)}{what}"

    def _has_reached(self, process: Process, failpoint: str) -> bool:
        """Whether a process is stopped, or has ended, soon."""
        deadline = time.monotonic() + _REACHED_SECONDS
        while not process.was_ended and process.state() not in {"T", "Z"}:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self.reached.add(failpoint.partition(":")[0])
        return True
