"""Use Arrow without pandas, whose import takes longer than most commands.

Before it creates an array, Arrow checks for pandas values, and imports pandas if it is installed, as PySpark requires.
This runtime has no values of pandas. The check is therefore run once while pandas cannot be imported, and Arrow caches
its result. Later imports of pandas succeed, and Arrow's conversions to pandas work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa


class _NoPandas:
    """An import finder that reports pandas as missing."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise the error of a missing module for pandas, and leave other modules to the other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def spare_pandas() -> None:
    """Make Arrow create arrays without pandas from now on, unless pandas is already imported."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
