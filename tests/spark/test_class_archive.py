"""`flowctl prepare`: Spark's classes come from an archive, where there is one that fits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_java import SPARK

from derive.spark.session import archive_options, class_archive, ensure_java

pytestmark = pytest.mark.spark

FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


def flowctl(*arguments: str) -> str:
    """What a command says on standard error."""
    command = [sys.executable, "-c", FLOWCTL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_classes_of_spark_are_loaded_from_the_archive(tmp_path: Path) -> None:
    flowctl("prepare")  # `make test` has done so before
    loaded = tmp_path / "loaded"
    options = [*archive_options(class_archive(ensure_java())), f"-Xlog:class+load:file={loaded}"]

    done = subprocess.run(
        [sys.executable, "-c", SPARK, str(tmp_path / "log"), *options], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
    classes = loaded.read_text().splitlines()
    (context,) = [line for line in classes if "org.apache.spark.SparkContext source:" in line]
    assert "source: shared objects file" in context
    assert sum("source: shared objects file" in line for line in classes) > len(classes) / 2
    assert "archived already" in flowctl("prepare")


def test_remains_of_a_killed_preparation_are_removed_by_the_next(tmp_path: Path) -> None:
    """An environment of its own, in which Java makes no archive."""
    left = tmp_path / "var" / "flowctl" / "prepare-left"
    left.mkdir(parents=True)
    script = FLOWCTL.replace("import sys;", "import sys; sys.prefix = sys.argv.pop(1);")
    command = [sys.executable, "-c", script, str(tmp_path), "prepare"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "_JAVA_OPTIONS": "-Xmx8m"}
    )

    assert done.returncode == 1
    assert "Java cannot archive Spark's classes" in done.stderr
    assert [path.name for path in left.parent.iterdir()] == ["prepare.lock"]


def test_unsuitable_archive_is_ignored_silently(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert archive_options(archive) == ()
    archive.write_bytes(b"of another Java" * 10_000)

    done = subprocess.run(
        [ensure_java() / "bin" / "java", *archive_options(archive), "-version"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
    assert "archive" not in done.stderr
