"""The import of pandas, which Arrow does with the first array, and which takes longer than the start of a process.

Arrow asks whether a value is one of pandas, and imports pandas for that if it is installed. No value is one as long as
nobody else has imported pandas. So the question is asked once while pandas cannot be found, and again when the module
or one of its libraries has imported pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Finder:
    """An import finder that finds no pandas until it lets Arrow know the pandas that it finds."""

    def __init__(self, arrow: Any) -> None:
        self._arrow = arrow
        self.is_hidden = True

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return the specification of pandas; None for other modules, which other finders find."""
        if name != "pandas":
            return None
        if self.is_hidden:
            raise ModuleNotFoundError(name, name=name)
        sys.meta_path.remove(self)
        spec = find_spec(name)
        return spec if spec is None or spec.loader is None else self._known_afterwards(spec)

    def _known_afterwards(self, spec: ModuleSpec) -> ModuleSpec:
        """Return a specification after whose execution Arrow asks again."""
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _ = self._arrow.lib._pandas_api.pd

        loader.exec_module = exec_module
        return spec


def defer_pandas(arrow: Any) -> None:
    """Let Arrow make arrays without pandas until something else imports pandas.

    Args:
        arrow: the module `pyarrow`.
    """
    if "pandas" in sys.modules or not hasattr(arrow.lib, "_pandas_api"):
        return
    finder = _Finder(arrow)
    sys.meta_path.insert(0, finder)
    arrow.array([])
    finder.is_hidden = False
