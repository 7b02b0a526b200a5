"""A derivation runtime whose collections are exact functions of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derive.reader import open_folder as open  # noqa: A004 (read as `derive.open`)

__all__ = ["open"]


def __getattr__(name: str) -> Any:
    """Import `derive.open` at its first use: most importers of the package never read a collection."""
    if name == "open":
        from derive.reader import open_folder

        return open_folder
    raise AttributeError(f"module 'derive' has no attribute '{name}'")
