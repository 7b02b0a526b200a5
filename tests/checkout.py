"""This checkout as if it were installed: with its own entry points, whatever was installed last."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def installed_site(folder: Path) -> Path:
    """A folder for Python's path, in which the package has the entry points that `pyproject.toml` says now."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
    return folder
