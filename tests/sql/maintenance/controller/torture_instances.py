"""Torture of compute instances: whatever goes wrong with them, clients see one history, and views that are right.

Instances, and the server, are killed and stopped at random moments and at failpoints; connections between them are cut,
refused, held and delayed by a proxy; disks are lost; a server that was taken for dead comes back. Meanwhile clients write,
read, look up, subscribe and define. No statement of theirs fails as long as the server lives, what they saw is checked for
strict serializability (`history.py`), and views against what they are views of. In the end each instance has what the
catalog has, and is right when it is asked alone.

    PYTHONPATH=. .venv/bin/python tests/sql/maintenance/controller/torture_instances.py --rounds 200
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psycopg

sys.path += [str(Path(__file__).parents[above]) for above in (2, 3)]

from cluster import Cluster, dataflows_in, eventually
from faults import Fault, Faults
from frontier_watch import FrontierWatch
from patience import PATIENCE_SECONDS
from proxy import Network
from standing_views import Definer, Looker, Rows, StandingClient, ViewSubscriber, Writer, check, create, read
from torture_sql import SqlTorture, Tables

ARRANGEMENTS = ((1, 0), (2, 0), (2, 0), (3, 0), (0, 2), (1, 1))
"""How many instances there are, and how many replicas the server starts."""

Script = Callable[[Faults], Iterator[Sequence[Fault]]]
"""Faults of each round."""

_MAINTAINED = ("MATERIALIZED VIEWS", "INDEXES")

LONGEST_SECONDS = 7.0
"""Longer than whoever is connected waits for a sign of life."""


class InstanceTorture(SqlTorture):
    """Histories in which instances are tortured.

    Args:
        folder: for data and logs.
        seed: of chance.
        arrangements: one for each history; None for any.
        script: faults of each round; None for any.
        longest: seconds that pass at most before something is mended, or goes wrong besides.
    """

    rounds_are = "rounds"

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        arrangements: Iterator[tuple[int, int]] | None = None,
        script: Script | None = None,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        super().__init__(folder, seed=seed, clients=3)
        self._network = Network()
        self._cluster = Cluster(folder, self._network, self._other_chance())
        self._server = self._cluster
        self.faults = Faults(self._cluster, self._other_chance(), longest)
        self._arrangements = arrangements or iter(lambda: self._chance.choice(ARRANGEMENTS), None)
        self._script = script(self.faults) if script else iter(self.faults.some, None)
        self.zombies = self.checks = 0
        self.slowest = 0.0
        cluster = self._cluster
        self._writer = Writer(cluster, self._other_chance(), 0.1)
        self._others: list[StandingClient] = [
            *(Looker(cluster, self._other_chance(), 0.1) for _ in range(2)),
            Definer(cluster, self._other_chance(), 2.0),
            FrontierWatch(cluster, self._other_chance(), cluster.data),
        ]
        self._subscribers = [ViewSubscriber(cluster, name, self._other_chance()) for name in ("odd", "parts")]

    def run(self, rounds: int) -> None:
        try:
            while self.kills < rounds:
                self._begin_again()
                if not self._histories:
                    create(self._cluster)
                with self._standing():
                    self._check(self._history(min(5, rounds - self.kills)))
                self._settle()
                print(f"{self._told()}: in order", flush=True)
        finally:
            self.faults.bury_zombie()
            self._cluster.close()
            self._network.close()

    def _other_chance(self) -> random.Random:
        return random.Random(self._chance.random())

    def _begin_again(self) -> None:
        """Start other instances, or have another server take over from one that is still there."""
        if self._histories and not self._cluster.replicas and self._chance.random() < 0.3:
            self.faults.leave_zombie()
            print("  another server takes over", flush=True)
            return
        self._cluster.kill()
        instances, replicas = next(self._arrangements)
        self._cluster.arrange(instances, replicas)
        self._cluster.start()
        print(f"  {instances} instances, and {replicas} replicas that the server starts", flush=True)

    @contextmanager
    def _standing(self) -> Iterator[None]:
        """Have all other clients act in this block; in the end, subscriptions have told everything."""
        stop, stop_following = threading.Event(), threading.Event()
        clients = [self._writer, *self._others]
        threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]
        following = [threading.Thread(target=one.run, args=(stop_following,)) for one in self._subscribers]
        for thread in (*threads, *following):
            thread.start()
        try:
            yield
            stop.set()
            _join(threads)
            self._raise_defects()
            with self._cluster.connect() as connection:
                for subscriber in self._subscribers:
                    rows = read(connection, f"SELECT * FROM {subscriber.name}")
                    self._await(
                        f"a subscription to {subscriber.name} has told {sorted(rows)}",
                        partial(_has_told, subscriber, rows),
                    )
        finally:
            stop.set()
            stop_following.set()
            _join([*threads, *following])
        self._raise_defects()

    def _raise_defects(self) -> None:
        clients: list[StandingClient | ViewSubscriber] = [self._writer, *self._others, *self._subscribers]
        for client in clients:
            if client.defect is not None:
                raise SystemExit(f"{self._told()}: {type(client).__name__}: {client.defect!r}") from client.defect

    def _torture(self) -> None:
        self.kills += 1
        has_zombie = self.faults.wake_zombie()
        self.zombies += has_zombie
        begin = time.monotonic()
        with ExitStack() as faults:
            for fault in next(self._script):
                reported = faults.enter_context(fault())
                at = time.monotonic() - begin
                print(
                    f"  round {self.kills}, {at:.1f} s: {reported}{', with a zombie' if has_zombie else ''}", flush=True
                )
                self.faults.pause()
        self._raise_defects()
        self.faults.pause()
        self.faults.bury_zombie()
        if self.faults.spares and not has_zombie:
            times = (time for client in (self._writer, *self._others) for time in client.slow)
            self.slowest = max([self.slowest, *(end - start for start, end in times if start > begin)])

    def _settle(self) -> None:
        """Nothing goes wrong any more: in the end instances have what the catalog has, and each of them is right."""
        cluster = self._cluster
        cluster.thaw()  # replicas inherit a failpoint of the server's
        with cluster.connect() as connection:
            self._drop(connection, Tables(self._histories))
            for instance in cluster.instances:
                others = [one.proxy for one in cluster.instances if one is not instance]
                self._await("all instances are connected", lambda: _are_connected(connection))
                if cluster.replicas:
                    continue
                for proxy in others:
                    proxy.is_refusing = True
                    proxy.cut()
                check(connection)
                self.checks += 1
                for proxy in others:
                    proxy.is_refusing = False
            self._await("all instances are connected", lambda: _are_connected(connection))
            views, indexes = (len(connection.execute(f"SHOW {what}".encode()).fetchall()) for what in _MAINTAINED)
        for folder in cluster.folders():
            self._await(f"{folder.name} has what is wanted", partial(self._has_wanted, folder, views + indexes))

    def _has_wanted(self, folder: Path, count: int) -> bool:
        wanted = self._cluster.wanted()
        return len(wanted) == count and dataflows_in(folder) == wanted

    @staticmethod
    def _drop(connection: psycopg.Connection, tables: Tables) -> None:
        """Drop the tables of a history, with all that is over them."""
        for name in (tables.a, tables.b, tables.gone, tables.lists):
            connection.execute(f"DROP TABLE {name} CASCADE".encode())

    def _await(self, what: str, is_so: Callable[[], bool]) -> None:
        try:
            eventually(what, is_so)
        except SystemExit as error:
            raise SystemExit(f"{self._told()}: {error}") from error

    def _told(self) -> str:
        checked = sum(subscriber.checked for subscriber in self._subscribers)
        clients = (self._writer, *self._others)
        done = ", ".join(f"{type(one).__name__} {one.count}" for one in clients)
        return (
            f"{super()._told()}; {self.zombies} zombies, {done}, {checked} times told before,"
            f" {self.checks} instances alone, {self.slowest:.1f} s at most while one was there"
        )


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive():
            faulthandler.dump_traceback()
            raise SystemExit("a client does not end")


def _has_told(subscriber: ViewSubscriber, rows: Rows) -> bool:
    return subscriber.rows() == rows or subscriber.defect is not None


def _are_connected(connection: psycopg.Connection) -> bool:
    return all(row[3] == "connected" for row in connection.execute("SHOW REPLICAS").fetchall())


def main() -> None:
    """Run the rounds; the exit status is that of the first violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="how often something goes wrong")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--keep", type=Path, help="a new folder for data and logs, which stays")
    options = parser.parse_args()
    print(f"{options.rounds} rounds, seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    with ExitStack() as stack:
        if options.keep:
            options.keep.mkdir()
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowctl-torture-")))
        InstanceTorture(folder, seed=options.seed).run(options.rounds)


if __name__ == "__main__":
    main()
