"""Rules for transforms and their inputs: sources, selectors, partitions, bounds of time, delays, shuffle keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from derive.catalog.definitions import CollectionDef, Report, SourceDef, TransformDef
from derive.catalog.language.structure import collisions, is_token
from derive.catalog.language.yaml import Located
from derive.catalog.rules.locations import SCALARS, defaults, scalar_type
from derive.document.clock import parse_rfc3339
from derive.document.pointer import JSON, parse_pointer
from derive.errors import suggest
from derive.position import Position
from derive.protocol.specs import (
    CollectionSpec,
    InputSpec,
    ProjectionSpec,
    SelectorSpec,
    ShuffleSpec,
    TransformSpec,
)
from derive.schema.shape import Shape, locate, type_of


def build_selector(at: Located | None, source: CollectionSpec, report: Report) -> SelectorSpec:
    """Return the selector that a person wrote.

    Args:
        at: an object with `include` and `exclude`; None to select everything.
        source: the collection.
        report: report for issues of unknown fields and impossible values.
    """
    if at is None or not at.value:
        return SelectorSpec()
    projections = {projection.field: projection for projection in source.projections}
    sides: dict[str, dict[str, tuple[JSON, ...]]] = {"include": {}, "exclude": {}}
    for side, fields in at.items():
        for field, values in fields.items():
            listed = list(values.elements()) if isinstance(values.value, list) else [values]
            if _is_partition(source, projections, field, values, report):
                for value_at in listed:
                    _check_value(projections[field], value_at, report)
            sides[side][field] = tuple(value_at.value for value_at in listed)
    return SelectorSpec(sides["include"], sides["exclude"])


def _is_partition(
    source: CollectionSpec, projections: dict[str, ProjectionSpec], field: str, values: Located, report: Report
) -> bool:
    known = [partition.field for partition in source.partitions]
    if field in known:
        return True
    guess = suggest(field, known)
    listed = f"known: {', '.join(known) or 'none'}"
    if field in projections:
        message = f"'{field}' is not a logical partition of '{source.name}'"
        pointer = projections[field].pointer
        hint = f"declare it there: 'projections: {{{field}: {{location: {pointer}, partition: true}}}}'"
        report.add("E306", message, values.key_position, hint)
    else:
        hint = f"did you mean '{guess}'?" if guess else listed
        report.add("E309", f"'{source.name}' has no field '{field}'", values.key_position, hint)
    return False


def _check_value(partition: ProjectionSpec, at: Located, report: Report) -> None:
    kind = type_of(at.value)
    if kind not in partition.types:
        allowed = ", ".join(sorted(partition.types))
        message = f"the logical partition '{partition.field}' cannot be {at.value!r}: its type is {allowed}"
        report.add("E310", message, at)
    elif at.value == "":
        report.add("E311", f"the logical partition '{partition.field}' cannot be selected by an empty string", at)


def build_input(
    definition: SourceDef, source: CollectionSpec, index: int, name: str, position: Position, report: Report
) -> InputSpec:
    """Return an input with the partitions and times of its source.

    Args:
        definition: definition of the source.
        source: the collection.
        index: index among the inputs of the task.
        name: unique name within the task.
        position: position in the catalog.
        report: report for issues.
    """
    not_before = _clock(definition.not_before, report)
    not_after = _clock(definition.not_after, report)
    if not_before is not None and not_after is not None and not_before >= not_after:
        assert definition.not_before is not None
        report.add("E501", "'notBefore' must come before 'notAfter'", definition.not_before)
    selector = build_selector(definition.partitions, source, report)
    return InputSpec(index, name, source.name, position, selector=selector, not_before=not_before, not_after=not_after)


def _clock(at: Located | None, report: Report) -> int | None:
    if at is None:
        return None
    try:
        return parse_rfc3339(at.value)
    except (ValueError, TypeError):
        report.add("E502", f"{at.value!r} is not a time such as 2023-01-23T01:00:00Z", at)
        return None


_TOKEN_HINT = "letters, numbers, '-', '_' and '.'"
_READING = re.compile(r"\.v[0-9]+$")
_READING_HINT = "names that end with '.v' and a number are reserved: data folders name repeated readings so"


def check_transform_names(definition: CollectionDef, transforms: Sequence[TransformDef], report: Report) -> None:
    """Report invalid names and conflicts between names."""
    for transform in transforms:
        name = transform.name.value
        is_reading = _READING.search(name) is not None
        if is_reading or not is_token(name):
            hint = _READING_HINT if is_reading else _TOKEN_HINT
            report.add("E101", f"'{name}' cannot be the name of a transform", transform.name, hint)
    for index, other, relation in collisions([transform.name.value for transform in transforms]):
        name, first = transforms[index].name, transforms[other].name
        message = f"transform '{name.value}' of '{definition.name}' {relation} transform '{first.value}'"
        if name.value == first.value:
            message = (
                f"transform '{name.value}' of '{definition.name}' is defined a second time; first at {first.position}"
            )
        report.add("E103", message, name)
    _check_former_names(definition, transforms, report)


def _check_former_names(definition: CollectionDef, transforms: Sequence[TransformDef], report: Report) -> None:
    """Report former names that a transform has now, or that two transforms have had."""
    names = {transform.name.value for transform in transforms}
    first: dict[str, Located] = {}
    for transform in transforms:
        former = transform.formerly
        if former is None or not former.value:
            continue
        other = first.setdefault(former.value, former)
        if former.value in names:
            message = f"'formerly' of '{transform.name.value}' names a transform that '{definition.name}' still has"
            report.add("E106", message, former, "write the name from before the rename")
        elif other is not former:
            message = (
                f"two transforms of '{definition.name}' have the former name '{former.value}'; see {other.position}"
            )
            report.add("E106", message, former, "only one transform can continue the former one")


class TransformBuilder:
    """Builds the transforms of derivations.

    Args:
        shapes: shape of each collection's read schema, by name.
        report: report for issues.
    """

    def __init__(self, shapes: Mapping[str, Shape], report: Report) -> None:
        self._shapes = shapes
        self._report = report

    def build(self, definition: TransformDef, index: int, source: CollectionSpec, *, feedback: bool) -> TransformSpec:
        """Return the transform.

        Args:
            definition: definition of the transform.
            index: index among the derivation's transforms.
            source: the collection that it reads.
            feedback: true if the source lies on a cycle with the derivation.
        """
        position = definition.name.position
        return TransformSpec(
            input=replace(
                build_input(definition.source, source, index, definition.name.value, position, self._report),
                priority=definition.priority,
                read_delay=definition.read_delay,
                backfill=definition.backfill,
                feedback=feedback,
                follows=definition.follows,
            ),
            shuffle=self._shuffle(definition, source),
            script=definition.script,
            formerly=None if definition.formerly is None else definition.formerly.value,
            quarantines=definition.quarantines,
        )

    def aligned(
        self, definition: CollectionDef, written: Sequence[TransformDef], built: Sequence[TransformSpec]
    ) -> list[TransformSpec]:
        """Return the transforms of a derivation, all with the same shuffle key types.

        Computed keys inherit the types.
        """
        assert definition.derive is not None
        keyed = [transform for transform in built if transform.shuffle.kind == "key"]
        explicit = definition.derive.shuffle_key_types
        definitions = {transform.name.value: transform for transform in written}
        if explicit is not None:
            if not isinstance(explicit.value, list) or not set(map(str, explicit.value)) <= set(SCALARS):
                return list(built)  # the loader has reported it
            desired, reason = tuple(explicit.value or ()), "'shuffleKeyTypes' has"
        elif keyed:
            desired, reason = keyed[-1].shuffle.key_types, f"'{keyed[-1].name}' has"
        else:
            self._check_inferred(written)
            return list(built)
        for transform in keyed:
            if transform.shuffle.key_types != desired:
                at = definitions[transform.name].shuffle or definitions[transform.name].name
                message = (
                    f"the shuffle key of '{transform.name}' has types [{', '.join(transform.shuffle.key_types)}],"
                    f" but {reason} [{', '.join(map(str, desired))}]"
                )
                self._report.add("E504", message, at)
        return [
            replace(transform, shuffle=replace(transform.shuffle, key_types=desired))
            if transform.shuffle.kind == "lambda"
            else transform
            for transform in built
        ]

    def _check_inferred(self, written: Sequence[TransformDef]) -> None:
        # If a key is invalid, the types are unknown for this reason, so they are not reported.
        if any(transform.shuffle is not None and "key" in transform.shuffle.value for transform in written):
            return
        for transform in written:
            if transform.shuffle_script is not None and transform.shuffle is not None:
                message = (
                    f"the types of the key that the shuffle lambda of '{transform.name.value}' computes are unknown"
                )
                hint = "add 'shuffleKeyTypes', such as [string], to 'derive'"
                self._report.add("E506", message, transform.shuffle["lambda"], hint)

    def _shuffle(self, definition: TransformDef, source: CollectionSpec) -> ShuffleSpec:
        at = definition.shuffle
        if definition.shuffle_script is not None:
            return ShuffleSpec("lambda", script=definition.shuffle_script)
        if at is not None and at.value == "any":
            return ShuffleSpec("any")
        shape = self._shapes[source.name]
        if at is None:
            types = [sorted(locate(shape, parse_pointer(pointer))[0].types - {"null"})[0] for pointer in source.key]
            return ShuffleSpec("key", source.key, source.key_defaults, tuple(types))
        key_at = at["key"]
        if not isinstance(key_at.value, list) or not key_at.value:
            self._report.add("E503", "a shuffle key is an array of at least one JSON pointer", key_at)
            return ShuffleSpec("any")
        key_types = [
            scalar_type(pointer_at, shape, "the shuffle key", self._report) for pointer_at in key_at.elements()
        ]
        if None in key_types:
            return ShuffleSpec("any")
        key = tuple(key_at.value)
        return ShuffleSpec("key", key, defaults(shape, key), tuple(key_type for key_type in key_types if key_type))
