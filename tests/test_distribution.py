"""The distribution: an sdist builds the wheel, and the wheel runs the first steps of a newcomer by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
"""Build a distribution of the current folder with the installed setuptools; print the name of the file."""


def run(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def copy_of_sources(folder: Path) -> Path:
    """Copy what a distribution is built from, so that nothing is built in the repository."""
    for name in ("derive", "connectors"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, folder)
    return folder


def test_wheel_of_the_sdist_runs_the_first_steps(tmp_path: Path) -> None:
    sources = copy_of_sources(tmp_path / "sources")
    sdist = run([sys.executable, "-c", BUILD, "build_sdist", tmp_path], sources).splitlines()[-1]
    with tarfile.open(tmp_path / sdist) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    unpacked = tmp_path / "unpacked" / sdist.removesuffix(".tar.gz")
    wheel = run([sys.executable, "-c", BUILD, "build_wheel", tmp_path], unpacked).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / wheel) as packed_wheel:
        names = set(packed_wheel.namelist())
    pages = [path for folder in ("static", "templates") for path in (REPOSITORY / "derive/ui" / folder).iterdir()]
    assert len(pages) > 15
    assert {path.relative_to(REPOSITORY).as_posix() for path in pages} - names == set()
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin/python"
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--no-deps",
            "--no-index",
            "--no-compile",
            tmp_path / wheel,
        ],
        tmp_path,
    )
    # The environment borrows the dependencies; its own packages come first.
    own = next(environment.glob("lib/python*/site-packages"))
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    flowctl = environment / "bin/flowctl"

    assert run([python, "-c", "import derive, connectors; print(derive.__file__, connectors.__file__)"], tmp_path) == (
        f"{own}/derive/__init__.py {own}/connectors/__init__.py\n"
    )
    version = wheel.split("-")[1]
    assert run([flowctl, "--version"], tmp_path).splitlines()[0] == f"flowctl {version}"
    run([flowctl, "init", "shop"], tmp_path)
    shop = tmp_path / "shop"
    run([flowctl, "test"], shop)
    run([flowctl, "ingest", "--collection", "shop/orders", "orders.jsonl"], shop)
    run([flowctl, "run", "--until-idle"], shop)
    read = run([flowctl, "collections", "read", "--collection", "shop/customers", "--reduce"], shop)
    assert read.splitlines() == [
        '{"customer":"ann","first_order":1,"orders":2,"spent":19.75}',
        '{"customer":"ben","first_order":2,"orders":2,"spent":42.25}',
    ]
