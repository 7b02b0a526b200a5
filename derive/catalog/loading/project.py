"""The project's folder: a catalog's code may be loaded from it alone, and files are generated in it."""

from __future__ import annotations

import os
from pathlib import Path

_ROOTS = ("flow.yaml", "flow.yml", "flow.json")


def project_root(source: Path) -> Path:
    """The folder of the project that a catalog belongs to: the outermost, without a gap, that holds a root file."""
    folder = source.absolute().parent
    while folder.parent != folder and any(os.path.isfile(folder.parent / name) for name in _ROOTS):
        folder = folder.parent
    return Path(os.path.normpath(folder))
