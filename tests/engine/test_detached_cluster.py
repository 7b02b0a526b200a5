"""A Spark cluster whose machines share nothing: workers without data folder, catalog, package and Python (laws L1, L2)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from conftest import World, write_catalog
from machines import Machine, Network, can_make_machines
from object_server import ObjectServer
from postgres_server import PASSWORD, server
from test_cluster import DEPLOY, quick_java
from test_kill import CATALOG, FLOWCTL, MODULE, TYPESCRIPT, ingest

from derive.catalog import load
from derive.spark.environment_archive import pack_environment
from derive.spark.session import _wrapper, find_java
from derive.storage.location import ObjectFolder
from derive.storage.metadata.location import choose_location
from derive.storage.metadata.place import VARIABLE, Place, place_of
from derive.storage.metadata.shared_opening import settle_place

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(1200)]

COUNT = 20_000
LIMITS = '{"documents": 6000, "small_documents": 0, "slice_documents": 3000}'
"""Limits of transactions, so that there are several, of several tasks each."""

REPOSITORY = Path(__file__).parents[2]
MASTER, FIRST, SECOND, DRIVER, STANDBY, OBJECTS, POSTGRES = range(2, 9)
"""Last numbers of addresses."""


class Cluster:
    """A master and two workers of one core each, which share nothing with each other, and two machines for drivers.

    Machines of Spark have only Java and Spark, in `/mnt`.
    """

    def __init__(self, folder: Path, objects: ObjectServer, ends: ExitStack) -> None:
        self.network = Network(folder)
        ends.callback(self.network.close)
        java = find_java()
        (folder / "java").write_text(_wrapper(Path("/mnt/jvm/bin/java"), java[1]))
        spark = Path(pyspark.__file__).parent
        hidden = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), Path.home(), Path("/tmp"), Path("/dev/shm")]
        setup = "mkdir -p /mnt/jvm /mnt/java/bin /mnt/spark /mnt/work\n"
        setup += f"mount --bind {java[0].resolve().parents[1]} /mnt/jvm; mount --bind {spark} /mnt/spark\n"
        setup += f"cp {folder}/java /mnt/java/bin/java; chmod +x /mnt/java/bin/java"
        address = self.network.serve(OBJECTS, 9000, int(objects.url.rpartition(":")[2]))
        self.storage = objects.environment | {"AWS_ENDPOINT_URL": f"http://{address}"}
        self.database = self.network.serve(POSTGRES, 5432, server().port)
        machines = [("master", MASTER), ("first", FIRST), ("second", SECOND)]
        self.machines = {name: self.network.machine(name, number, hidden, setup) for name, number in machines}
        for name, number in (("driver", DRIVER), ("standby", STANDBY)):
            self.machines[name] = self.network.machine(name, number)
        self.url = f"spark://{self.machines['master'].address}:7077"
        self._start("master", f"{DEPLOY}.master.Master", "I have been elected leader")
        for name in ("first", "second"):
            self.start_worker(name)
        for name in ("first", "second"):
            self.wait(name, "Successfully registered with master")

    def start_worker(self, name: str) -> None:
        options = ["--cores", "1", "--memory", "1g", "--work-dir", "/mnt/work", self.url]
        self._start(name, f"{DEPLOY}.worker.Worker", "", *options)

    def _start(self, name: str, program: str, said: str, *options: str) -> None:
        machine = self.machines[name]
        environment = {"PATH": "/usr/bin:/bin", "SPARK_HOME": "/mnt/spark", "JAVA_HOME": "/mnt/java", "HOME": "/mnt"}
        environment |= {"SPARK_DAEMON_JAVA_OPTS": quick_java(), "SPARK_LOCAL_IP": machine.address, **self.storage}
        listen = ["--host", machine.address, "--port", "7077" if name == "master" else "0", "--webui-port", "0"]
        machine.start(["/mnt/spark/bin/spark-class", program, *listen, *options], environment)
        if said:
            self.wait(name, said)

    def wait(self, name: str, said: str) -> None:
        """Wait for a text in the output of a machine."""
        deadline = time.monotonic() + 240
        while said not in self.machines[name].log.read_text():
            assert time.monotonic() < deadline, self.machines[name].log.read_text()[-2000:]
            time.sleep(0.1)

    def run(self, name: str, source: Path, place: Place, *options: str) -> subprocess.Popen[bytes]:
        """Start a run on the machine of a driver, with a data folder of its own."""
        machine = self.machines[name]
        url = f"postgresql://postgres@{self.database}/postgres?schema={place.schema}"
        command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
        command += ["--source", str(source), "--data", f"/mnt/{place.schema}", "--metadata", url, "--master", self.url]
        command += ["--state-cache", "/mnt/cache", "--limits", LIMITS]
        for setting in (
            f"spark.driver.host={machine.address}",
            f"spark.driver.bindAddress={machine.address}",
            f"spark.executor.extraJavaOptions={quick_java()}",
            "spark.network.timeout=20s",
            "spark.network.timeoutInterval=5s",
            "spark.executor.heartbeatInterval=4s",
        ):
            command += ["--conf", setting]
        return machine.start([*command, *options], self._environment_of(machine))

    def _environment_of(self, machine: Machine) -> Mapping[str, str]:
        own = {name: value for name, value in os.environ.items() if name != VARIABLE}
        return own | {"SPARK_LOCAL_IP": machine.address, "PGPASSWORD": PASSWORD, **self.storage}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
    pack_environment(path)
    return path


@pytest.fixture
def cluster(tmp_path: Path, object_server: ObjectServer) -> Iterator[Cluster]:
    if not can_make_machines():
        pytest.skip("only root makes networks")
    folder = tmp_path / "machines"
    folder.mkdir()
    with ExitStack() as ends:
        yield Cluster(folder, object_server, ends)


def loaded(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, Place]:
    """Return a data folder of this process with documents, and the place of its metadata."""
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    place = place_of(os.environ[VARIABLE])
    settle_place(tmp_path / "loader", place, creates=True)
    choose_location(tmp_path / "loader", ObjectFolder("s3://flow/data"))
    ingest(World(tmp_path / "loader", load(source)), COUNT)
    return World(tmp_path / "loader", load(source)), place


def in_process(tmp_path: Path, source: Path) -> dict[str, str]:
    """Return the digests of the same documents, derived in this process."""
    ingest(World(tmp_path / "expected", load(source)), COUNT)
    world = World(tmp_path / "expected", load(source))
    world.step(shards=1)
    return world.digest()


def kill_worker(cluster: Cluster, objects: ObjectServer, source: Path, place: Place, *options: str) -> int:
    """Kill a worker, while it stores an object; Spark runs its part on the other one."""
    run = interrupted(cluster, objects, source, place, *options)
    cluster.machines["first"].kill()
    objects.go.set()
    return run.wait(600)


def cut_worker(cluster: Cluster, objects: ObjectServer, source: Path, place: Place, *options: str) -> int:
    """Cut a worker off until Spark has replaced it; then it returns, with late objects."""
    run = interrupted(cluster, objects, source, place, *options)
    cluster.machines["first"].cut()
    objects.go.set()
    before = len(objects.objects)
    while len(objects.objects) < before + 3:
        assert run.poll() is None, "it ended before the worker could return"
        time.sleep(0.02)
    cluster.machines["first"].heal()
    return run.wait(600)


def replace_driver(cluster: Cluster, objects: ObjectServer, source: Path, place: Place, *options: str) -> int:
    """Kill the machine of the driver; another machine takes its place, with an empty folder."""
    interrupted(cluster, objects, source, place, *options)
    cluster.machines["driver"].kill()
    run = cluster.run("standby", source, place, *options)
    objects.go.set()
    return run.wait(600)


def interrupted(
    cluster: Cluster, objects: ObjectServer, source: Path, place: Place, *options: str
) -> subprocess.Popen[bytes]:
    """Start a run, and wait until a worker stores an object of the second transaction."""
    run = cluster.run("driver", source, place, *options)
    while not any("k/totals@" in key for key in list(objects.objects)):
        assert run.poll() is None, cluster.machines["driver"].log.read_text()
        time.sleep(0.02)
    objects.holds = "k/totals@"
    assert objects.held.wait(200), cluster.machines["driver"].log.read_text()
    return run


Disturb = Callable[..., int]


@pytest.mark.parametrize("disturb", [kill_worker, cut_worker, replace_driver])
@pytest.mark.parametrize("language", ["sqlite", "typescript"])
def test_cluster_without_shared_files_publishes_the_same(
    language: str,
    disturb: Disturb,
    cluster: Cluster,
    archive: Path,
    tmp_path: Path,
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Laws L1 and L2: workers that have only Spark publish the bytes of one process, whatever is lost meanwhile."""
    files = {"totals__ts": MODULE} if language == "typescript" else {}
    source = write_catalog(tmp_path, TYPESCRIPT if files else CATALOG, **files)
    expected = in_process(tmp_path, source)
    world, place = loaded(tmp_path, source, monkeypatch)
    options = ["--conf", f"spark.archives={archive}#environment"]
    options += ["--conf", "spark.pyspark.python=./environment/bin/python"]

    status = disturb(cluster, object_server, source, place, *options)

    assert status == 0, "".join(cluster.machines[name].log.read_text() for name in ("driver", "standby"))
    assert world.digest() == expected
    world.store.close()


def test_cluster_without_python_stops_the_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_catalog(tmp_path, CATALOG)
    world, place = loaded(tmp_path, source, monkeypatch)
    world.store.close()

    run = cluster.run("driver", source, place)

    assert run.wait(300) == 1
    assert re.search(
        rf"error: the Spark worker on host 10\.77\.0\.[34] cannot start Python: there is no program {sys.executable}\n"
        r"  = install this package on the worker, .*flowctl environment pack\n",
        cluster.machines["driver"].log.read_text(),
    )
