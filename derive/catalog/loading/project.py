"""The project's folder: it contains all code of a catalog, and the generated files."""

from __future__ import annotations

import os
from pathlib import Path

_ROOTS = ("flow.yaml", "flow.yml", "flow.json")


def project_root(source: Path) -> Path:
    """Return the project's folder of a catalog.

    The folder is the outermost parent in an unbroken chain of folders with root files.
    """
    folder = source.absolute().parent
    while folder.parent != folder and any(os.path.isfile(folder.parent / name) for name in _ROOTS):
        folder = folder.parent
    return Path(os.path.normpath(folder))
