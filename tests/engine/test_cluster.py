"""A Spark standalone cluster on this machine: shards on two workers, one of which dies in the middle (laws L1, L2)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from conftest import write_catalog
from local_wheels import PYDANTIC, copy_installed, offline, write_wheel
from test_kill import CATALOG, FLOWCTL, PYTHON, PYTHON_MODULE, loaded, wait_for_progress
from victims import processes_of

from derive.spark.session import JAVA_OPTIONS, archive_options, class_archive, ensure_java

pytestmark = pytest.mark.spark

COUNT = 120_000
DEPLOY = "org.apache.spark.deploy"


def quick_java() -> str:
    """Options with which six virtual machines start sooner."""
    return " ".join([JAVA_OPTIONS, *archive_options(class_archive(ensure_java()))])


def hiding(folder: Path) -> list[str]:
    """A command that runs another one where a folder is empty, as on a machine that does not have the folder."""
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]


class Cluster:
    """A master and two workers of one core each, from which a folder may be hidden."""

    def __init__(self, folder: Path, hidden: Path | None = None) -> None:
        self._folder = folder
        listen = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._processes = [self._start("master", f"{DEPLOY}.master.Master", *listen, "--port", "0")]
        self._wait("master", "I have been elected leader")
        (self.master,) = re.findall(r"Starting Spark master at (spark://\S+)", self._log("master").read_text())
        for name in ("first", "second"):
            options = [*listen, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / name)]
            self._processes.append(self._start(name, f"{DEPLOY}.worker.Worker", *options, self.master, hidden=hidden))
        for name in ("first", "second"):
            self._wait(name, "Successfully registered with master")

    def _start(self, name: str, *command: str, hidden: Path | None = None) -> subprocess.Popen[bytes]:
        spark, java = Path(pyspark.__file__).parent, ensure_java()
        away = hiding(hidden) if hidden else []
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                [*away, spark / "bin" / "spark-class", *command],
                env=os.environ
                | {"SPARK_HOME": str(spark), "JAVA_HOME": str(java), "SPARK_DAEMON_JAVA_OPTS": quick_java()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait(self, name: str, said: str) -> None:
        log = self._log(name)
        deadline = time.monotonic() + 120
        while said not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)

    def kill_worker(self) -> None:
        """Kill a worker, its executor, and the Python of that."""
        self._kill(self._processes.pop())

    def close(self) -> None:
        while self._processes:
            self._kill(self._processes.pop())

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        for pid in processes_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_catalog(tmp_path, CATALOG)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    started = Cluster(folder)
    yield started
    started.close()


@pytest.mark.torture  # workers of a local master that die are those of test_spark_failpoints.py
def test_dead_worker_does_not_change_results(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    expected = loaded(source, tmp_path / "undisturbed", COUNT)
    expected.step(shards=1)
    world = loaded(source, tmp_path, COUNT)
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "3", "--master", cluster.master]
    command += ["--local-documents", "0", "--conf", f"spark.executor.extraJavaOptions={quick_java()}"]
    process = subprocess.Popen(
        [*command, "--source", str(source), "--data", str(world.root)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for_progress(world, process)
    cluster.kill_worker()
    said = process.communicate(timeout=300)[1].decode()

    assert process.returncode == 0, said
    assert all(list((tmp_path / "cluster" / name).glob("app-*/*/stderr")) for name in ("first", "second"))
    assert world.digest() == expected.digest()


@pytest.mark.torture  # workers of a local master that do not see the folder are those of spark/test_executor.py
def test_workers_without_the_data_folder_stop_the_run_with_host_and_cause(source: Path, tmp_path: Path) -> None:
    world = loaded(source, tmp_path, COUNT)
    if subprocess.run([*hiding(world.root), "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not hide a folder from a process")
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, hidden=world.root)
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "3", "--master", cluster.master]
    command += ["--local-documents", "0", "--conf", f"spark.executor.extraJavaOptions={quick_java()}"]
    try:
        done = subprocess.run(
            [*command, "--source", str(source), "--data", str(world.root)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        cluster.close()

    assert done.returncode == 1, done.stderr
    reported = f"a Spark worker on host {socket.gethostname()} cannot see the data folder {world.root}: "
    assert f"error: {reported}No such file or directory" in done.stderr
    assert "memory" not in done.stderr


@pytest.mark.torture  # packing and unpacking are those of connectors/test_derive_python_environment.py
def test_workers_with_another_cache_get_the_environment_of_a_python_module(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_installed(tmp_path / "wheels", *PYDANTIC)
    write_wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": "LENGTH = 3\n"})
    for name, value in {**offline(tmp_path / "wheels"), "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "totals"\ndependencies = ["tiny"]\n')
    module = "import tiny\n" + PYTHON_MODULE.replace("[:3]", "[: tiny.LENGTH]")
    catalog = PYTHON.replace("{module: totals.py}", "{files: [pyproject.toml, totals.py]}")
    source = write_catalog(tmp_path, catalog, totals__py=module)
    flowctl = [sys.executable, "-c", FLOWCTL]
    subprocess.run([*flowctl, "generate", "--source", str(source)], check=True, stdout=subprocess.DEVNULL)
    expected, world = loaded(source, tmp_path / "undisturbed", 6_000), loaded(source, tmp_path, 6_000)
    expected.step(shards=1)
    other = tmp_path / "other machine"
    command = [*flowctl, "run", "--until-idle", "--shards", "2", "--master", cluster.master, "--local-documents", "0"]
    command += ["--conf", f"spark.executor.extraJavaOptions={quick_java()}"]
    command += ["--conf", f"spark.executorEnv.XDG_CACHE_HOME={other}"]

    done = subprocess.run(
        [*command, "--source", str(source), "--data", str(world.root)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert world.digest() == expected.digest()
    assert {path.name for path in (other / "flowctl/python/environments").iterdir()} == {
        "lock",
        *(path.name for path in (tmp_path / "cache/flowctl/python/environments").glob("cpython-*[!r]")),
    }
