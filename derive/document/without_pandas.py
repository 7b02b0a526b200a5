"""Arrow without pandas, which takes longer to load than most commands to run.

To make an array of values, Arrow first asks whether they are something of pandas, and loads it for that if it is
installed: PySpark wants it to be. No value here ever is. So the question is put once while pandas cannot be loaded, and
Arrow keeps the answer. Whoever loads pandas later finds it, and so does Arrow where it is told to make something of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa


class _NoPandas:
    """Finds that there is no pandas."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing is found by it, and pandas by nobody else either."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def spare_pandas() -> None:
    """Have Arrow make arrays without pandas from now on, unless that is loaded already."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
