"""A derivation runtime whose collections are exact functions of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derive.flow import Flow
    from derive.flow import open_flow as open  # noqa: A004 (read as `derive.open`)

__all__ = ["Flow", "open"]


def __getattr__(name: str) -> Any:
    """Import `derive.open` at its first use: most importers of the package never use a data folder."""
    if name in __all__:
        from derive.flow import Flow, open_flow

        return {"Flow": Flow, "open": open_flow}[name]
    raise AttributeError(f"module 'derive' has no attribute '{name}'")
