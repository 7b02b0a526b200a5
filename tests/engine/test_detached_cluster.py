"""A Spark cluster whose machines share nothing: workers without data folder, catalog, package and Python (laws L1, L2)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson
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

    Attributes:
        package: folder of the package of the drivers; None for this one.
    """

    def __init__(self, folder: Path, objects: ObjectServer, ends: ExitStack) -> None:
        self.network = Network(folder)
        self.package: Path | None = None
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
        url = f"postgresql://postgres@{self.database}/postgres?schema={place.schema}"
        where = ["--data", f"/mnt/{place.schema}", "--metadata", url, "--state-cache", "/mnt/cache"]
        return self._run(name, source, *where, *options)

    def run_in_folder(self, name: str, source: Path, data: Path, *options: str) -> subprocess.Popen[bytes]:
        """Start a run on the machine of a driver, with a data folder that has documents, metadata and states."""
        return self._run(name, source, "--data", str(data), *options)

    def _run(self, name: str, source: Path, *options: str) -> subprocess.Popen[bytes]:
        machine = self.machines[name]
        command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
        command += ["--source", str(source), "--master", self.url, "--limits", LIMITS]
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
        if self.package is not None:
            own["PYTHONPATH"] = str(self.package)
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


@dataclass(frozen=True)
class Unfit:
    """A lack of the workers.

    Attributes:
        options: options of the run.
        reason: the error of the run, as a pattern.
        is_in_folder: whether documents and states are in a data folder, which only the driver has.
        is_changed: whether the driver has another release of the package than the archive.
    """

    options: tuple[str, ...]
    reason: str
    is_in_folder: bool = False
    is_changed: bool = False


HOST = r"10\.77\.0\.[34]"
SENT = ("--conf", "spark.archives={archive}#environment", "--conf", "spark.pyspark.python=./environment/bin/python")
UNFIT = {
    "no python": Unfit(
        (),
        rf"error: the Spark worker on host {HOST} cannot start Python: there is no program {sys.executable}\n"
        r"  = install this package on the worker, .*flowctl environment pack\n",
    ),
    "no data": Unfit(
        SENT,
        r"error: a Spark worker on host (first|second) cannot see the data folder .*: No such file or directory\n"
        r"  = every machine of the cluster must have the data folder under the same path",
        is_in_folder=True,
    ),
    "another release": Unfit(
        SENT,
        r"error: a Spark worker on host (first|second) has another release of this package than the run: .*\n"
        r"  = install the same release of this package on all machines of the cluster\n",
        is_changed=True,
    ),
}
MOST_SECONDS = 30


@pytest.mark.parametrize("lack", UNFIT)
def test_unfit_worker_stops_the_run_with_its_host_and_the_reason(
    lack: str, cluster: Cluster, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run starts no second job, and its job ends within 30 s of the first failure, by the times of Spark's events.

    Before that, a worker fetches and starts its environment, at the pace of a busy computer.
    """
    unfit = UNFIT[lack]
    source, events = write_catalog(tmp_path, CATALOG), tmp_path / "events"
    events.mkdir()
    options = [option.format(archive=archive) for option in unfit.options]
    for setting in ("enabled=true", f"dir={events.as_uri()}", "compress=false", "rolling.enabled=false"):
        options += ["--conf", f"spark.eventLog.{setting}"]
    if unfit.is_changed:
        cluster.package = changed_package(tmp_path / "package")

    if unfit.is_in_folder:
        world = World(tmp_path / "data", load(source))
        ingest(world, COUNT)
        world.store.close()
        run = cluster.run_in_folder("driver", source, tmp_path / "data", *options)
    else:
        world, place = loaded(tmp_path, source, monkeypatch)
        world.store.close()
        run = cluster.run("driver", source, place, *options)
    status = run.wait()

    log = cluster.machines["driver"].log.read_text()
    assert status == 1, log
    assert re.search(unfit.reason, log), log
    failed, ended, jobs = spent(events)
    assert jobs == 1
    assert ended - failed < MOST_SECONDS * 1000


def changed_package(folder: Path) -> Path:
    """Copy this package to a folder, with another module, as in another release."""
    for name in ("derive", "connectors"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "derive" / "another.py").write_text('"""A module of another release."""\n')
    return folder


def spent(folder: Path) -> tuple[int, int, int]:
    """Return the end of the first task, the end of the last job (milliseconds), and the number of jobs."""
    events = [orjson.loads(line) for file in folder.glob("*") for line in file.read_text().splitlines()]
    failed = [event["Task Info"]["Finish Time"] for event in events if event["Event"] == "SparkListenerTaskEnd"]
    ended = [event["Completion Time"] for event in events if event["Event"] == "SparkListenerJobEnd"]
    return min(failed), max(ended), len(ended)
