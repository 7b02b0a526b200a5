"""Builds environments of libraries, and moves them to other machines as archives.

An environment is built aside and then renamed, so a folder with the name of an environment is complete. One process
builds at a time. Its lock is inherited by the program that it runs, so a program that outlives a killed process
finishes before the next process removes its files and builds again.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connectors.derive_python.config import PythonConfig
from connectors.derive_python.environment import (
    OLDEST_PYDANTIC,
    Environment,
    declaration_position,
    environment_of,
    environments_folder,
    find_missing,
    supports_python,
)
from derive.errors import TaskError

_UNUSED_SECONDS = 30 * 86_400.0
_BUILDING = "building-"
"""Prefix of what is not complete; any such file is of a killed process for the process with the lock."""

_PROBE = "import sys, pydantic; print(sys.version_info >= (3, 11), pydantic.VERSION)"
_OLDEST = ".".join(map(str, OLDEST_PYDANTIC))

_ERROR = re.compile(r"\s*(ERROR:|error:|×)", re.IGNORECASE)
_MOST_LINES = 12


def build_environment(config: PythonConfig) -> str | None:
    """Build the environment of a module unless it exists; return a line that says so, or None.

    Raises:
        TaskError: uv or pip cannot install the libraries, or the harness cannot run in the environment.
    """
    environment = environment_of(config)
    if environment is None or environment.python.exists():
        return None
    position = declaration_position(config, environment)
    began = time.monotonic()
    try:
        with _alone() as lock:
            if environment.python.exists():
                return None
            _Builder(config, environment, lock).build()
    except OSError as exc:
        raise TaskError(f"the environment cannot be written: {exc}", position=position) from exc
    except TaskError as error:
        if error.position is None:
            error.position = position
        raise
    return f"built the environment of {position.file} ({time.monotonic() - began:.1f} s)"


@contextmanager
def _alone() -> Iterator[int]:
    """Lock out other processes that build, and remove the files of killed processes; yield the lock's descriptor."""
    folder = environments_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for entry in folder.iterdir():
            is_unused = entry.name != "lock" and time.time() - entry.stat().st_mtime > _UNUSED_SECONDS
            if is_unused or entry.name.startswith(_BUILDING):
                _remove(entry)
        yield lock.fileno()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds one environment.

    Attributes:
        config: configuration of a module that uses the environment.
        environment: the declaration.
        lock: descriptor that programs inherit.
    """

    config: PythonConfig
    environment: Environment
    lock: int

    def build(self) -> None:
        """Build the environment aside, and rename it.

        Raises:
            TaskError: a program failed, or a file of the declaration has changed meanwhile.
        """
        folder = self.environment.folder
        with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=folder.parent) as made:
            project = Path(self.config.folder)
            if not project.is_absolute():  # the project is elsewhere in the network
                project = Path(made)
                for name, text in self.environment.files.items():
                    (project / name).write_bytes(text.encode())
            work = Path(made) / "environment"
            self._create(work)
            self._install(work / "bin" / "python", project, Path(made))
            for name, text in self.environment.files.items():
                if (project / name).read_bytes().decode("utf-8", "replace") != text:
                    raise TaskError(f"{name} was edited while its environment was built", hint="run the command again")
            _require_copies(work)
            require_harness(work / "bin" / "python", self.environment)
            _remove(folder)  # its Python has disappeared
            work.rename(folder)

    def _create(self, work: Path) -> None:
        """Create an environment without libraries."""
        requires = self.environment.requires_python
        is_own, uv = supports_python(requires), find_uv()
        if uv:
            self._run(
                [uv, "venv", "--quiet", "--no-project", "--python", sys.executable if is_own else requires, str(work)]
            )
        elif is_own:
            self._run([sys.executable, "-m", "venv", "--without-pip", str(work)])
        else:
            own = ".".join(map(str, sys.version_info[:3]))
            raise TaskError(
                f"requires-python '{requires}' excludes Python {own}, which runs flowctl",
                position=declaration_position(self.config, self.environment, "requires-python"),
                hint="install uv, which finds other versions of Python",
            )

    def _install(self, python: Path, project: Path, scratch: Path) -> None:
        """Install the libraries of the declaration and those of the harness."""
        uv = find_uv()
        if uv:
            install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--link-mode=hardlink"]
            install += ["--python", str(python)]
        elif importlib.util.find_spec("pip"):
            pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input"]
            install = [*pip, "install", "--quiet"]
        else:
            raise TaskError("neither uv nor pip is installed beside flowctl", hint="pip install uv")
        lock, harness = self.environment.lock, list(self.environment.harness)
        if not lock:
            declared = ["-r", str(project / "pyproject.toml")] if uv else [*self.environment.dependencies]
            self._run([*install, *declared, *harness], project)
            return
        exact = project / lock
        if lock == "uv.lock":
            if uv is None:
                hint = "install uv, or export the file: uv export -o requirements.lock"
                raise TaskError("only uv can read uv.lock, and uv is not installed", hint=hint)
            exact = scratch / "requirements.txt"
            export = [
                "--locked",
                "--no-dev",
                "--no-editable",
                "--no-emit-project",
                "--quiet",
                "--output-file",
                str(exact),
            ]
            self._run([uv, "export", *export], project)
        self._run([*install, "-r", str(exact)], project)
        text = exact.read_text("utf-8", "replace")
        # a second call, because files with hashes allow no requirement without one
        named = {name.lower() for name in re.findall(r"^[\w.-]+", text, re.MULTILINE)}
        missing = [need for need in harness if re.split("[>=]", need)[0] not in named]
        if missing:
            self._run([*install, *missing], project)

    def _run(self, command: Sequence[str], folder: Path | None = None) -> None:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            pass_fds=(self.lock,),
        )
        if done.returncode:
            tool = "uv" if command[0] == find_uv() else command[2]
            raise TaskError(f"{tool} cannot build the environment: {essence_of(done.stderr or done.stdout)}")


def find_uv() -> str | None:
    """Return the program uv, which stands beside the Python of `flowctl` or in PATH; None without one."""
    return shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


def essence_of(text: str) -> str:
    r"""Return the lines of a program's output from its first error on, without notes, and not many.

    >>> essence_of("Looking in links: .\nERROR: No matching distribution found for tiny\n\n[notice] A new release")
    'ERROR: No matching distribution found for tiny'
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("[notice]", "WARNING:"))]
    first = next((place for place, line in enumerate(lines) if _ERROR.match(line)), 0)
    lines = [line[:500] for line in lines[first:]]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = ["…"]
    return "\n".join(lines).strip() or "it printed no message"


def _require_copies(work: Path) -> None:
    """Raise a TaskError if a library is a link to its sources, which the sandbox and other machines cannot read."""
    for about in sorted(work.glob("lib/python*/site-packages/*.dist-info/direct_url.json")):
        if json.loads(about.read_text()).get("dir_info", {}).get("editable"):
            library = about.parent.name.partition("-")[0]
            message = f"the library '{library}' is editable: a link to its sources, which modules cannot read"
            raise TaskError(message, hint="declare the library without 'editable' or '-e'")


def require_harness(python: Path, environment: Environment) -> None:
    """Raise a TaskError unless the harness can run in an environment.

    Args:
        python: interpreter of the environment.
        environment: the declaration.
    """
    done = subprocess.run([python, "-I", "-c", _PROBE], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise TaskError(f"the runtime cannot start in the environment: {last}")
    is_recent, pydantic = done.stdout.split()
    if is_recent != "True":
        raise TaskError(
            f"requires-python '{environment.requires_python}' leads to a Python before 3.11, the oldest version that"
            " runs modules"
        )
    if tuple(int(part) for part in re.findall(r"\d+", pydantic)[:2]) < OLDEST_PYDANTIC:
        message = f"{environment.lock} has pydantic {pydantic}, and the runtime needs {_OLDEST} or later"
        raise TaskError(message, hint=f"update pydantic in {environment.lock}")


def pack_environment(config: PythonConfig) -> Path | None:
    """Return an archive of the environment of a module, made unless it exists; None if the module needs none.

    The archive has the libraries, and no interpreter: `unpack_environment` adds that of its machine.

    Raises:
        TaskError: the environment is not built.
    """
    environment = environment_of(config)
    if environment is None:
        return None
    if missing := find_missing(config):
        raise TaskError(missing.message, position=missing.position, hint=missing.hint)
    folder = environment.folder
    archive = folder.with_name(f"{environment.name}.tar")
    if archive.exists():
        os.utime(archive)
        return archive
    with _alone():
        if not archive.exists():
            made = folder.with_name(f"{_BUILDING}{archive.name}")
            with tarfile.open(made, "w", dereference=True) as tar:
                for name in ("pyvenv.cfg", "lib", "share", "etc"):
                    if (folder / name).exists():
                        tar.add(folder / name, name)
            made.rename(archive)
    return archive


def unpack_environment(config: PythonConfig, archive: Path) -> None:
    """Make the environment of a module on this machine from an archive, unless it exists.

    Raises:
        TaskError: this machine has another platform or lacks the version of Python, or a library does not start.
    """
    environment = environment_of(config)
    if environment is None or environment.python.exists():
        return
    folder = environment.folder
    if archive.stem != environment.name:
        raise TaskError(
            f"the archive {archive.name} of an environment is for another platform than this machine, which needs"
            f" {environment.name}"
        )
    with _alone():
        if environment.python.exists():
            return
        with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=folder.parent) as made:
            work = Path(made) / "environment"
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
                tar.extractall(work)
            base = _base_python(work)
            command = [base, "-m", "venv", "--without-pip", str(work)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                raise TaskError(f"{base} cannot make an environment: {essence_of(done.stderr)}")
            require_harness(work / "bin" / "python", environment)
            _remove(folder)
            work.rename(folder)


def _base_python(work: Path) -> str:
    """Return a Python of this machine with the version of an unpacked environment."""
    version = next(work.glob("lib/python*")).name
    if version == f"python{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    home = re.search(r"^home *= *(.+)$", (work / "pyvenv.cfg").read_text(), re.MULTILINE)
    base = Path(home[1].strip() if home else "") / version
    if not base.exists():
        raise TaskError(f"an environment needs {version}, and this machine has no {base}")
    return str(base)
