"""Environments that a module's pyproject.toml declares: building, use, and moving to other machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from local_wheels import PYDANTIC, copy_installed, offline, write_wheel
from python_derivation import HEAD, derivation, run

from connectors.derive_python import PythonConnector, build_environment
from connectors.derive_python.build_environment import essence_of, find_uv, unpack_environment
from connectors.derive_python.config import ProjectFile, PythonConfig, config_of
from connectors.derive_python.environment import Environment, environment_of, find_fault, find_missing
from derive.errors import LambdaError, TaskError, WorkerError
from derive.position import Position
from derive.protocol.specs import DerivationSpec
from derive.spark.executor import SparkExecutor
from derive.spark.worker_checks import find_unfit

pytestmark = pytest.mark.xdist_group("python modules")
TINY = {"tiny/__init__.py": "def double(value: int) -> int:\n    return 2 * value\n", "tiny/py.typed": ""}
PROJECT = '[project]\nname = "acme"\nversion = "1"\ndependencies = ["tiny"]\n'
MODULE = f"""{HEAD}import sys
import tiny
class Derivation(IDerivation):
    def from_in(self, read: Request.ReadFromIn) -> Any:
        return {{"id": tiny.double(read.doc.id), "prefix": sys.prefix}}
"""
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
TOOLS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(find_uv() is None, reason="uv is not installed"))]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two versions of a tiny library, and a pydantic that imports quickly and does nothing."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tiny", version, {**TINY, "tiny/version.py": f"VERSION = '{version}'\n"})
    for version in ("2.11.9", "2.99"):
        write_wheel(folder, "pydantic", version, {"pydantic/__init__.py": f"VERSION = '{version}'\n"})
    return folder


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build_environment, "find_uv", lambda: None)
    for name, value in offline(wheels).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def spec_of(folder: Path, project: str = PROJECT, /, **locks: str) -> DerivationSpec:
    """Return a derivation whose project has these files, which are written."""
    texts = {"pyproject.toml": project, **{name.replace("__", "."): text for name, text in locks.items()}}
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = tuple(ProjectFile(name, text.encode()) for name, text in texts.items())
    return derivation(MODULE, schema=SCHEMA, files=files, folder=str(folder))


def config(folder: Path, project: str = PROJECT, /, **locks: str) -> PythonConfig:
    return config_of(spec_of(folder, project, **locks))


def declared(config: PythonConfig) -> Environment:
    environment = environment_of(config)
    assert environment is not None
    return environment


def version(config: PythonConfig) -> str:
    """Return the version of the tiny library in the environment of a module."""
    command = [str(declared(config).python), "-I", "-c", "from tiny.version import VERSION; print(VERSION)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# Real pydantic, the type checker and the sandbox, once: this takes some seconds.
def test_module_uses_the_libraries_of_its_project(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_installed(tmp_path / "wheels", *PYDANTIC)
    write_wheel(tmp_path / "wheels", "tiny", "1.0", TINY)
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    spec, connector = spec_of(folder), PythonConnector()
    message = "no environment is built for the present content of pyproject.toml"
    at = Position("pyproject.toml", 4, 1, 12)
    [issue] = connector.check([spec])
    assert (issue.code, issue.message, issue.position) == ("E536", message, at)
    assert issue.hint == "run flowctl generate"
    with pytest.raises(LambdaError, match=message) as raised:
        run(spec, [{"id": 4}])
    assert raised.value.position == at

    line = connector.build_environment(spec)

    assert line is not None
    assert line.startswith("built the environment of pyproject.toml (")
    assert connector.build_environment(spec) is None
    assert connector.check([spec]) == []
    prefix = str(declared(config_of(spec)).folder)
    assert run(spec, [{"id": 4}]) == [(0, {"id": 8, "prefix": prefix})]
    named = derivation(MODULE, schema=SCHEMA, interpreter=f"{prefix}/bin/python")
    assert run(named, [{"id": 5}]) == [(0, {"id": 10, "prefix": prefix})]
    wrong = derivation(
        MODULE.replace("double(read.doc.id)", "double('x')").replace("import sys", "import sys, nosuch"),
        schema=SCHEMA,
        files=config_of(spec).files,
        folder=str(folder),
    )
    assert [(issue.message, issue.hint) for issue in connector.check([wrong])] == [
        (
            "Cannot find module 'nosuch'",
            "add the library to 'dependencies' of pyproject.toml, and run flowctl generate",
        ),
        (
            "Argument 'Literal['x']' is not assignable to parameter 'value' with type 'int' in function 'tiny.double'",
            None,
        ),
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tool", TOOLS)
def test_lock_file_decides_the_version(tool: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if tool == "uv":
        monkeypatch.setattr(build_environment, "find_uv", find_uv)
    free = config(folder)
    locked = config(folder, requirements__lock="tiny==1.0\n")
    assert free != locked
    build_environment.build_environment(locked)
    assert find_missing(locked) is None
    assert find_missing(free) is not None
    build_environment.build_environment(free)
    assert [version(locked), version(free)] == ["1.0", "2.0"]


@pytest.mark.skipif(find_uv() is None, reason="uv is not installed")
def test_uv_lock_decides_the_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = find_uv()
    assert uv is not None
    monkeypatch.setattr(build_environment, "find_uv", lambda: uv)
    project = PROJECT + 'requires-python = ">=3.11"\n'
    (folder / "pyproject.toml").write_text(project)
    subprocess.run([uv, "lock", "--quiet", "--upgrade-package", "tiny==1.0"], cwd=folder, check=True)
    locked = config(folder, project, uv__lock=(folder / "uv.lock").read_text())
    build_environment.build_environment(locked)
    assert version(locked) == "1.0"
    outdated = config(folder, project.replace('"tiny"', '"tiny>=2"'), uv__lock=(folder / "uv.lock").read_text())
    with pytest.raises(TaskError, match="uv cannot build the environment: error: "):
        build_environment.build_environment(outdated)


def test_edited_declaration_needs_another_environment_which_is_built_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = config(folder)
    build_environment.build_environment(built)
    others = [
        config(folder, PROJECT, requirements__lock=""),
        config_of(derivation(MODULE, files=built.files, models="msgspec")),
        config(folder, PROJECT.replace("tiny", "tiny<2")),
    ]
    assert find_missing(built) is None
    for other in others:
        assert find_missing(other) is not None
    with monkeypatch.context() as patched:
        patched.setattr(build_environment._Builder, "_install", lambda *_: None)
        with pytest.raises(TaskError, match="pyproject.toml was edited while its environment was built"):
            build_environment.build_environment(others[0])
    declared(built).python.unlink()
    declared(built).python.symlink_to("/nowhere/python")  # as after the removal of that Python
    assert find_missing(built) is not None
    lines = built_at_once(config(folder), config(folder))
    assert sorted(line is None for line in lines) == [False, True]
    assert version(built) == "2.0"


def built_at_once(*configs: PythonConfig) -> list[str | None]:
    """Build environments at the same time; return the lines about them."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(build_environment.build_environment, configs))


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (PROJECT.replace("tiny", "tiny>3"), Position("pyproject.toml", 4, 1, 12), "pip cannot build the environment: ERROR: Could not find a version that satisfies the requirement tiny>3"),
        (PROJECT + 'requires-python = "<3.11"\n', Position("pyproject.toml", 5, 1, 15), "requires-python '<3.11' excludes Python "),
    ],
)  # fmt: skip
def test_failed_build_is_reported_at_the_declaration(text: str, at: Position, message: str, folder: Path) -> None:
    with pytest.raises(TaskError) as raised:
        build_environment.build_environment(config(folder, text))
    assert raised.value.message.startswith(message)
    assert len(raised.value.message.splitlines()) <= 3
    assert raised.value.position == at
    assert [path.name for path in declared(config(folder, text)).folder.parent.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo True 2.11.9", "requirements.lock has pydantic 2.11.9, and the runtime needs 2.12 or later"),
        ("echo False 2.14.0", "requires-python '' leads to a Python before 3.11, the oldest version that runs modules"),
        ("echo a; echo b: c >&2; exit 1", "the runtime cannot start in the environment: b: c"),
    ],
)
def test_environment_without_the_needs_of_the_runtime_is_refused(script: str, message: str, folder: Path) -> None:
    (folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "python").chmod(0o755)
    with pytest.raises(TaskError, match=message):
        build_environment.require_harness(folder / "python", declared(config(folder, PROJECT, requirements__lock="")))


def test_uv_lock_needs_uv(folder: Path) -> None:
    with pytest.raises(TaskError, match="only uv can read uv.lock, and uv is not installed"):
        build_environment.build_environment(config(folder, PROJECT, uv__lock="version = 1\n"))


BUILD = """
import sys
from connectors.derive_python import build_environment
from connectors.derive_python.config import ProjectFile, PythonConfig
from derive.position import Position, Script
build_environment.find_uv = lambda: None
files = (ProjectFile("pyproject.toml", open(sys.argv[1] + "/pyproject.toml", "rb").read()),)
config = PythonConfig(Script("", "", Position("acme.py")), "acme.py", files, sys.argv[1])
build_environment.build_environment(config)
"""


def test_killed_build_leaves_no_environment_and_the_next_one_builds(folder: Path) -> None:
    """A builder is killed while pip asks an index; pip ends later, and only then are its files removed."""
    wanted = config(folder)
    with socket.create_server(("127.0.0.1", 0)) as index:
        environment = {**os.environ, "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/", "PIP_RETRIES": "0"}
        del environment["PIP_NO_INDEX"], environment["PIP_FIND_LINKS"]
        builder = subprocess.Popen([sys.executable, "-c", BUILD, folder], env=environment, stderr=subprocess.DEVNULL)
        connection, _ = index.accept()
        builder.kill()
        assert builder.wait() == -signal.SIGKILL
        assert find_missing(wanted) is not None
        left = {path.name for path in declared(wanted).folder.parent.iterdir()}
        assert len(left) == 2  # the lock, and the files of the killed builder
        with ThreadPoolExecutor() as threads:
            following = threads.submit(build_environment.build_environment, wanted)
            connection.close()
            index.close()
        assert following.result() is not None
    assert version(wanted) == "2.0"
    assert {path.name for path in declared(wanted).folder.parent.iterdir()} == {"lock", declared(wanted).name}


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("[project]\na b", (2, 3), "pyproject.toml is not valid TOML: Expected '=' after a key in a key/value pair"),
        ("[project]\ndependencies = 'a'", (2, 1), "'dependencies' of pyproject.toml is not a list of texts"),
        ("[project]\ndynamic = ['dependencies']", (2, 1), "pyproject.toml declares its dependencies as dynamic, so only its build knows them"),
        ("[project]\nrequires-python = '3.11'", (2, 1), "'requires-python' of pyproject.toml does not name versions"),
        ("[project]\nrequires-python = 3.11", (2, 1), "'requires-python' of pyproject.toml does not name versions"),
        ("[tool]\ndependencies = 3", None, None),
        ("project = 3", None, None),
    ],
)  # fmt: skip
def test_declaration_that_cannot_be_read_is_an_issue(text: str, at: tuple[int, int] | None, message: str) -> None:
    issue = find_fault(text.encode(), "acme/pyproject.toml")
    found = issue and ((issue.position.line, issue.position.column), issue.message)
    assert found == (None if at is None else (at, message))


@pytest.mark.parametrize(
    ("project", "interpreter", "is_needed"),
    [
        (PROJECT, "", True),
        (PROJECT, "/usr/bin/python3", False),
        (PROJECT.replace('"tiny"', ""), "", False),
        ("[project]\nrequires-python = '>=3.11'\n", "", False),
        ("[project]\nrequires-python = '<3'\n", "", True),
        ("[tool.ruff]\n", "", False),
    ],
)
def test_environment_is_made_for_libraries_and_other_pythons(project: str, interpreter: str, is_needed: bool) -> None:
    files = (ProjectFile("pyproject.toml", project.encode()),)
    assert (environment_of(config_of(derivation("", files=files, interpreter=interpreter))) is not None) == is_needed


def test_worker_with_another_cache_gets_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited, spec = spec_of(folder, PROJECT.replace("tiny", "tiny<2")), spec_of(folder)
    build_environment.build_environment(config_of(spec))
    executor, sent = SparkExecutor("spark://127.0.0.1:7077", tmp_path / "log"), list[str]()
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(addFile=sent.append))
    prepare = executor._with_libraries(session, spec)
    assert executor._with_libraries(session, spec) is not None
    [archive] = sent
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other machine"))
    monkeypatch.setattr("pyspark.SparkFiles.get", lambda name: str(Path(archive).with_name(name)))
    assert find_missing(config_of(spec)) is not None
    assert prepare is not None

    for _ in range(2):
        stage = prepare(lambda number, packets, attempt: iter([number]))
        assert list(stage(7, iter(()), 0)) == [7]

    assert find_missing(config_of(spec)) is None
    assert version(config_of(spec)) == "2.0"
    assert SparkExecutor(None, tmp_path)._with_libraries(session, spec) is None
    assert SparkExecutor("local[2]", tmp_path)._with_libraries(session, spec) is None
    with pytest.raises(TaskError, match="is for another platform than this machine"):
        unpack_environment(config_of(edited), Path(archive))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (3, 99, 0))
        with pytest.raises(TaskError, match=r"an environment needs python3.\d+, and this machine has no"):
            build_environment._base_python(_without_home(declared(config_of(spec)).folder, tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third machine"))
    Path(archive).unlink()
    reason = f"on host {socket.gethostname()} cannot use the libraries of 'acme/out': .*No such file"
    with pytest.raises(WorkerError, match=reason) as raised:
        stage(0, iter(()), 0)
    reported = find_unfit(f"derive.errors.WorkerError: {raised.value.message}")
    assert reported is not None
    assert (reported.message, reported.hint) == (raised.value.message, None)


def test_library_that_is_a_link_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(builder: Any, python: Path, *_: Path) -> None:
        info = python.parents[1] / "lib/python3.11/site-packages/tiny-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')

    monkeypatch.setattr(build_environment._Builder, "_install", install)
    with pytest.raises(TaskError, match="the library 'tiny' is editable: a link to its sources"):
        build_environment.build_environment(config(folder))
    with pytest.raises(TaskError, match="no environment is built"):
        build_environment.pack_environment(config(folder))


def _without_home(environment: Path, folder: Path) -> Path:
    made = folder / "unpacked"
    (made / "lib" / next(environment.glob("lib/python*")).name).mkdir(parents=True)
    (made / "pyvenv.cfg").write_text("home = /nowhere\n")
    return made


@pytest.mark.parametrize(
    ("text", "essence"),
    [
        ("Looking in links: x\nERROR: one\nERROR: two\n\n[notice] three", "ERROR: one\nERROR: two"),
        ("  × No solution found:\n  ╰─▶ Because", "× No solution found:\n  ╰─▶ Because"),
        ("", "it printed no message"),
        ("\n".join(map(str, range(30))), "0\n1\n2\n3\n4\n5\n…\n24\n25\n26\n27\n28\n29"),
    ],
)
def test_output_of_installers_is_cut_to_its_errors(text: str, essence: str) -> None:
    assert essence_of(text) == essence
