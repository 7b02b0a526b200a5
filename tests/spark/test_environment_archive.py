"""Archives of this package and of its environment, unpacked where neither is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from derive.errors import TaskError
from derive.spark import environment_archive
from derive.spark.environment_archive import pack_environment
from derive.spark.release import release

SHOWN = """
import derive.shard.worker
from derive.protocol.entry_points import ENTRY_POINTS, entry_points_of
from derive.spark.release import release
print(derive.__file__, *release(), *sorted(entry_points_of(ENTRY_POINTS)))
"""
CONNECTORS = "python sqlite typescript"


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")
    return folder


def test_archive_of_the_package_has_the_same_release(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert pack_environment(tmp_path / name, package_only=True) > 500
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    folder = unpacked(tmp_path / "one", tmp_path / "unpacked")

    # -S: no installed package is on the path, except the libraries that the machine has
    libraries = f"import sys; sys.path += [{str(folder)!r}, {sysconfig.get_path('purelib')!r}]"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{libraries}\n{SHOWN}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{folder}/derive/__init__.py {' '.join(release())} {CONNECTORS}\n"


@pytest.mark.torture  # packs and unpacks 600 MB
def test_environment_runs_in_another_folder(tmp_path: Path) -> None:
    pack_environment(tmp_path / "archive")
    folder = unpacked(tmp_path / "archive", tmp_path / "else where")
    show = f"import sys, pandas, deno\n{SHOWN}print(sys.executable, deno.find_deno_bin(), *sys.path)"

    done = subprocess.run(
        [folder / "bin/python", "-c", show], env={"LANG": "C"}, cwd="/", capture_output=True, text=True, check=True
    )

    package, places = done.stdout.splitlines()
    assert package.endswith(f"/derive/__init__.py {' '.join(release())} {CONNECTORS}")
    assert package.startswith(f"{folder}/lib")
    assert places.startswith(f"{folder}/bin/python {folder}/bin/deno ")
    assert sys.prefix not in places
    assert not list(folder.rglob("pyspark/jars"))


@pytest.mark.parametrize(
    ("program", "moved"),
    [
        (b"ELF\0/opt/python/lib\0more", b"ELF\0$ORIGIN/../lib\0\0more"),
        (b"ELF\0$ORIGIN/../lib\0more", b"ELF\0$ORIGIN/../lib\0more"),  # as in relocatable builds
        (b"ELF\0/usr/lib\0more", None),
        (b"ELF\0/opt/python/lib\0more\0/opt/python/lib\0", None),  # in doubt
    ],
    ids=["fixed", "relative", "too short", "twice"],
)
def test_interpreter_finds_its_shared_library_beside_itself(
    program: bytes, moved: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"Py_ENABLE_SHARED": 1, "LIBDIR": "/opt/python/lib"}
    monkeypatch.setattr(sysconfig, "get_config_var", config.get)
    if moved is None:
        with pytest.raises(TaskError, match="cannot be moved"):
            environment_archive._movable(program)
    else:
        assert environment_archive._movable(program) == moved


def test_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment_archive, "PACKAGE", "no-such-package")
    with pytest.raises(TaskError, match="the library 'no-such-package' is not installed"):
        environment_archive._needed()
