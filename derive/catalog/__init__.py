"""The catalog: what a person writes in `flow.yaml`, and what it builds to."""

from derive.catalog.build import load

__all__ = ["load"]
