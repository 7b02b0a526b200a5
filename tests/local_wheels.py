"""Wheels from files and from installed libraries, so that environments are built without a network."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

PYDANTIC = ("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection")


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str | bytes], tag: str = "py3-none-any"
) -> Path:
    """Write a wheel of files, which include METADATA if the library has requirements; return its path."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    content = {**about, **files}
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    path = folder / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in content.items():
            wheel.writestr(file, text)
    return path


def copy_installed(folder: Path, *names: str) -> None:
    """Write the wheels of libraries that are installed here."""
    for name in names:
        library = distribution(name)
        wheel = library.read_text("WHEEL") or ""
        tag = next(line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: "))
        files = {
            str(file): Path(str(file.locate())).read_bytes()
            for file in library.files or ()
            if file.suffix != ".pyc"
            and ".." not in file.parts
            and file.name not in {"RECORD", "INSTALLER", "REQUESTED"}
        }
        write_wheel(folder, name, library.version, files, tag)


def offline(folder: Path) -> dict[str, str]:
    """Return the environment variables with which pip and uv find the wheels of a folder, and no others."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_NO_CONFIG": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_OFFLINE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
