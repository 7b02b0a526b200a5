"""Positions: where transforms go on, in adjusted time."""

from __future__ import annotations

from derive.protocol.specs import DerivationSpec, TransformSpec


def offset_of(spec: DerivationSpec, transform: TransformSpec) -> int:
    """Microseconds from a source document's clock to its adjusted clock: the read delay and the feedback tick."""
    return transform.read_delay + (spec.tick if transform.feedback else 0)
