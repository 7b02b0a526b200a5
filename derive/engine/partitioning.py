"""The shape of a derivation: its number of shards, and how its transactions are cut."""

from __future__ import annotations

from derive.protocol.installed import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.shard.plan import Shape


def default_shards(spec: DerivationSpec, cores: int) -> int:
    """Return the number of shards of a task that has never run: one on a cycle, whose small steps are sequential."""
    return 1 if has_feedback(spec) else cores


def has_feedback(spec: DerivationSpec) -> bool:
    """Return whether a derivation is on a cycle, with others or by itself."""
    return any(read.feedback for read in spec.inputs)


def keeps_state(spec: DerivationSpec) -> bool:
    """Return whether lambdas can combine documents: through a key, state or feedback."""
    state = find_runtime(spec.connector).keeps_state(spec)
    return state or any(transform.shuffle.kind != "any" or transform.input.feedback for transform in spec.transforms)


def shape_of(spec: DerivationSpec, shards: int) -> Shape:
    """Return how transactions of this task are cut."""
    if not keeps_state(spec):
        return "slices"
    return "single" if shards == 1 else "sharded"
