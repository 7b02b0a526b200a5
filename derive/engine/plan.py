"""How transactions of a derivation are cut, and where its shards keep their state."""

from __future__ import annotations

from derive.errors import TaskError
from derive.protocol.installed import find_runtime
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.shard.plan import Shape
from derive.storage.metadata.descriptions import TaskState
from derive.time.positions import Place, offset_of


def place_of(spec: DerivationSpec, transform: TransformSpec) -> Place:
    """What the position of a transform is a position in."""
    shuffle = transform.shuffle
    ways = {"any": "any", "key": f"key [{', '.join(shuffle.key)}]", "lambda": shuffle.script and shuffle.script.text}
    return Place(transform.input.source, offset_of(transform.input, spec.tick), ways[shuffle.kind] or "")


def misplaced(spec: DerivationSpec, state: TaskState) -> TaskError | None:
    """The error of a task whose shards would look for state that others of them keep."""
    for transform in spec.transforms:
        before, now = state.places.get(transform.input.state_key), place_of(spec, transform)
        if state.shards > 1 and state.tokens and before and before.shuffle and before.shuffle != now.shuffle:
            return TaskError(
                f"'{transform.name}' of '{spec.name}' was shuffled by {before.shuffle}, and is now shuffled by"
                f" {now.shuffle}: what its {state.shards} shards keep lies where the first one put it",
                position=transform.position,
                hint=f"shuffle as before, or start over: flowctl reset --task {spec.name}",
            )
    return None


def default_shards(spec: DerivationSpec, cores: int) -> int:
    """Shards of a task that has never run: one if it reads itself, so that it can feed back in memory."""
    return 1 if any(each.source == spec.name for each in spec.inputs) else cores


def keeps_state(spec: DerivationSpec) -> bool:
    """Whether documents can meet one another in the lambdas: through a key, through state, or through feedback."""
    state = find_runtime(spec.connector).keeps_state(spec)
    return state or any(transform.shuffle.kind != "any" or transform.input.feedback for transform in spec.transforms)


def shape_of(spec: DerivationSpec, shards: int) -> Shape:
    """How transactions of this task are cut."""
    if not keeps_state(spec):
        return "slices"
    return "single" if shards == 1 else "sharded"
