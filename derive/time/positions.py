"""Positions: where transforms go on, in adjusted time."""

from __future__ import annotations

from derive.protocol.specs import InputSpec


def offset_of(spec: InputSpec, tick: int) -> int:
    """Microseconds from a source document's clock to its adjusted clock: the read delay and the feedback tick."""
    return spec.read_delay + (tick if spec.feedback else 0)
