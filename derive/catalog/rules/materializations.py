"""Rules for materializations: endpoints, and the sources, resources and fields of their bindings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from derive.catalog.definitions import BindingDef, MaterializationDef, Report
from derive.catalog.language.yaml import Located
from derive.catalog.loading import Resources
from derive.catalog.rules.transforms import build_input
from derive.errors import CatalogError, Issue, suggest
from derive.position import Position, is_remote, reason_of, resolve, show
from derive.protocol.materialization import ENCRYPTED
from derive.protocol.specs import (
    AddressEndpoint,
    BindingSpec,
    CollectionSpec,
    ConnectorEndpoint,
    EndpointConfig,
    EndpointSpec,
    FieldsSpec,
    LocalEndpoint,
)

_SHOWN = 12


def build_fields(at: Located | None, collection: CollectionSpec, position: Position, report: Report) -> FieldsSpec:
    """Return the selected fields of a binding.

    Args:
        at: the written selection; None for the connector's recommendation.
        collection: collection of the fields.
        position: position of the binding.
        report: report for issues.
    """
    if at is None or not at.value:
        return FieldsSpec(position)
    parts = dict(at.items())
    named = list(_named(parts))
    for name, name_position in named:
        _check_known(name, name_position, collection, report)
    include = {
        name: value
        for part in ("include", "require")
        if part in parts
        for name, value in (parts[part].value or {}).items()
    }
    excluded = list(parts["exclude"].elements()) if "exclude" in parts else []
    for field_at in excluded:
        if field_at.value in include:
            report.add("E705", f"the field '{field_at.value}' is both excluded and included", field_at)
    recommended = parts["recommended"].value if "recommended" in parts else True
    return FieldsSpec(
        position=at.position,
        recommended=bool(recommended),
        depth=None if isinstance(recommended, bool) else int(recommended),
        include=include,
        exclude=tuple(field_at.value for field_at in excluded),
        key=_key(parts.get("groupBy"), collection, report),
        positions=dict(reversed(named)),
    )


def _named(parts: dict[str, Located]) -> Iterator[tuple[str, Position]]:
    """Yield the name and position of each named field."""
    for part in ("require", "include"):
        if part in parts:
            yield from ((name, field_at.key_position) for name, field_at in parts[part].items())
    for part in ("exclude", "groupBy"):
        if part in parts:
            yield from ((field_at.value, field_at.position) for field_at in parts[part].elements())


def _check_known(name: str, position: Position, collection: CollectionSpec, report: Report) -> None:
    known = [projection.field for projection in collection.projections]
    if name in known:
        return
    guess = suggest(name, known)
    listed = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
    hint = f"did you mean '{guess}'?" if guess else f"known: {listed}"
    report.add("E704", f"'{collection.name}' has no field '{name}'", position, hint)


def _key(at: Located | None, collection: CollectionSpec, report: Report) -> tuple[str, ...]:
    if at is None or not at.value:
        return ()
    pointers = {projection.field: projection.pointer for projection in collection.projections}
    fields = tuple(at.value)
    if all(name in pointers for name in fields) and tuple(pointers[name] for name in fields) != collection.key:
        key = ", ".join(collection.key)
        message = f"'groupBy' must name the key of '{collection.name}', which is {key}"
        report.add("E706", message, at, "derive a collection with that key, and materialize it")
        return ()
    return fields


_NAMING = ("database", "project", "dataset", "schema", "table", "collection", "index", "topic", "name", "path", "url")
"""Properties that identify a resource, in the order in which they form its name."""

_LIKE_A_BACKFILL = re.compile(r"\.v[0-9]+$")
"""Forbidden suffix of names, because it marks the progress of a binding whose `backfill` was raised."""

_OTHER_REFERENCE = re.compile(r"(?<!\$)\$\{(?!env:|file:)([^{}]+)\}")


class MaterializationBuilder:
    """Builds endpoints and bindings.

    Args:
        resources: loader of files.
        report: report for issues.
        notes: list for remarks, which are not errors.
    """

    def __init__(self, resources: Resources, report: Report, notes: list[Issue]) -> None:
        self._resources = resources
        self._report = report
        self._notes = notes

    def endpoint(self, definition: MaterializationDef) -> EndpointSpec | None:
        """Return the endpoint of a materialization; None if its configuration cannot be loaded."""
        at, url = definition.endpoint, definition.url
        body = at if "address" in at.value else at[next(iter(at.value))]
        config = self._config(body["config"], url)
        if config is None:
            return None
        if "address" in at.value:
            return AddressEndpoint(at["address"].value, config, at["address"].position)
        if "connector" in at.value:
            return ConnectorEndpoint(body["image"].value, config, body["image"].position)
        env_at = body["env"] if "env" in body.value else None
        env = EndpointConfig({}, url, body.position) if env_at is None else self._noted(env_at, url)
        folder = os.getcwd() if is_remote(url) else os.path.dirname(url)
        return LocalEndpoint(tuple(body["command"].value), config, body["command"].position, env, folder)

    def binding(
        self, definition: BindingDef, url: str, index: int, source: CollectionSpec, names: Mapping[str, BindingSpec]
    ) -> BindingSpec | None:
        """Return a binding.

        Args:
            definition: definition of the binding.
            url: URL of its file.
            index: index among the materialization's enabled bindings.
            source: the collection that the binding reads.
            names: the earlier bindings, by name.

        Returns:
            The binding; None if its resource cannot be loaded.
        """
        loaded = self._object(definition.resource, url, "the resource")
        if loaded is None:
            return None
        resource, _ = loaded
        label = _label(resource.value)
        name = _unused(f"{source.name} -> {label}" if label else source.name, names)
        position = definition.at.position
        read = build_input(definition.source, source, index, name, position, self._report)
        spec = BindingSpec(
            input=replace(read, priority=definition.priority, backfill=definition.backfill, follows=definition.follows),
            collection=source,
            resource=resource.value,
            fields=build_fields(definition.fields, source, position, self._report),
            position=position,
            resource_positions=resource.positions(),
        )
        for other in names.values():
            if other.resource == spec.resource:
                message = f"another binding already has this resource, at {other.position}"
                self._report.add("E703", message, definition.resource)
        return spec

    def _config(self, at: Located, url: str) -> EndpointConfig | None:
        loaded = self._object(at, url, "the configuration")
        return None if loaded is None else self._noted(*loaded)

    def _noted(self, at: Located, url: str) -> EndpointConfig:
        """Return a configuration, and add notes for unknown references and for an encrypted configuration."""
        for text_at in _strings(at):
            match = _OTHER_REFERENCE.search(text_at.value)
            if match:
                message = f"'{match[0]}' is not a reference to a secret: the text stays unchanged"
                self._notes.append(Issue("N004", message, text_at.position, f"write '${{env:{match[1]}}}'"))
        if isinstance(at.value, dict) and ENCRYPTED in at.value:
            message = "this configuration is encrypted, and has to be decrypted before it is used"
            self._notes.append(Issue("N005", message, at[ENCRYPTED].key_position))
        return EndpointConfig(at.value, url, at.position, at.positions())

    def _object(self, at: Located, url: str, what: str) -> tuple[Located, str] | None:
        """Return an object that is written inline or in a named file, with the URL of its file."""
        if not isinstance(at.value, str):
            return at, url
        target = resolve(url, at.value)
        try:
            if "#" in at.value:
                raise OSError("only schemas have parts that '#' can name")
            file = self._resources.document(target)
        except OSError as exc:
            self._report.add("E003", f"cannot load {what} {show(target)}: {reason_of(exc)}", at)
            return None
        except CatalogError as exc:
            self._report.take(exc.issues)
            return None
        if not isinstance(file.value, dict):
            self._report.add("E701", f"{show(target)} must hold an object: {what}", at)
            return None
        return Located(file, (), file.value), target


def _strings(at: Located) -> Iterator[Located]:
    if isinstance(at.value, str):
        yield at
    elif isinstance(at.value, dict | list):
        for child in [member for _, member in at.items()] if isinstance(at.value, dict) else at.elements():
            yield from _strings(child)


def _label(resource: Mapping[str, object]) -> str:
    """Return the name of a resource; settings that only change how the resource is written do not change the name.

    The name of a resource without the usual properties consists of all properties except booleans. The name must not
    depend on the order of bindings, because a moved or disabled binding would then give its progress to another
    binding.
    """
    named = [str(resource[name]) for name in _NAMING if isinstance(resource.get(name), str) and resource[name]]
    others = {name: value for name, value in resource.items() if not isinstance(value, bool)}
    if named or not others:
        return ".".join(named)
    return json.dumps(others, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _unused(name: str, names: Mapping[str, BindingSpec]) -> str:
    number = 2
    unused = f"{name} (1)" if _LIKE_A_BACKFILL.search(name) else name
    while unused in names:
        unused = f"{name} ({number})"
        number += 1
    return unused
