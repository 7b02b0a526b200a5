"""Checks of materializations that store nothing.

Each connector is started and asked for its schemas, and its endpoint is asked for the constraints of the bindings. A
catalog is valid or invalid on every machine, so a missing connector, endpoint or secret is only a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from derive.document.pointer import escape
from derive.errors import CatalogError, EndpointGoneError, FlowError, Issue
from derive.materialize.connector import Connectors, not_installed
from derive.materialize.fields import FieldSelection
from derive.materialize.preparation import PreparedMaterialization, config_faults, prepare, resource_faults
from derive.protocol.secrets import references
from derive.protocol.specs import JSON, MaterializationSpec

_NOT_RUN, _NOT_ASKED, _CROWDED, _REFUSED = "N006", "N007", "N008", "E711"


Examine: TypeAlias = Callable[[PreparedMaterialization], Iterable[Issue]]
"""Returns further faults of a materialization whose bindings its connector accepts."""


def check_materializations(
    specs: Iterable[MaterializationSpec], connectors: Connectors, examine: Examine = lambda prepared: ()
) -> list[Issue]:
    """Return the faults of materializations, and notes on checks that were not possible; disabled ones are skipped."""
    return [issue for spec in specs if not spec.disabled for issue in _check(spec, connectors, examine)]


def _check(spec: MaterializationSpec, connectors: Connectors, examine: Examine) -> Iterator[Issue]:
    missing = not_installed(spec.endpoint)
    if missing is not None:
        message, hint = missing
        yield Issue(_NOT_RUN, f"'{spec.name}' cannot run here: {message}", spec.endpoint.position, hint)
        return
    try:
        connector = connectors.connect(spec.endpoint)
        schemas = connector.schemas()
    except FlowError as error:
        yield _note(spec, error)
        return
    try:
        spec.endpoint.config.reveal()
    except FlowError as error:
        yield _note(spec, error)
        unknown = {spec.endpoint.config.positions.get(pointer) for pointer in _referring(spec.endpoint.config.written)}
        faults = config_faults(spec, schemas, spec.endpoint.config.written)
        yield from (issue for issue in faults if issue.position not in unknown)
        yield from resource_faults(spec, schemas)
        return
    try:
        prepared = prepare(spec, connector)
        yield from _crowded(prepared)
        yield from examine(prepared)
    except CatalogError as error:
        yield from error.issues
    except EndpointGoneError as error:
        yield _note(spec, error)
    except FlowError as error:
        yield Issue(_REFUSED, error.message, error.position or spec.endpoint.position, error.hint)


def _crowded(prepared: PreparedMaterialization) -> Iterator[Issue]:
    """Yield a note for each binding with more fields than the endpoint has room for."""
    for binding in prepared.bindings:
        if binding.fields.left_out:
            message = f"'{binding.spec.name}' {show_left_out(binding.fields)}"
            hint = "exclude what is not needed, or require what is; the document has all of them"
            yield Issue(_CROWDED, message, binding.spec.position, hint)


def show_left_out(fields: FieldSelection) -> str:
    """Return a text about the fields without a column."""
    count, first = len(fields.left_out), fields.left_out[0]
    more = "1 field" if count == 1 else f"{count:,} fields"
    return f"leaves out {more}, '{first}' is the first: there is room for {fields.most:,}"


def _note(spec: MaterializationSpec, error: FlowError) -> Issue:
    named = f"'{spec.name}'"
    message = error.message.removeprefix(f"{named}: ")
    return Issue(
        _NOT_ASKED, f"{named} is not fully checked: {message}", error.position or spec.endpoint.position, error.hint
    )


def _referring(value: JSON, pointer: str = "") -> Iterator[str]:
    """Yield the pointers of strings that contain references."""
    if isinstance(value, str) and references(value):
        yield pointer
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _referring(member, f"{pointer}/{escape(name)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _referring(item, f"{pointer}/{index}")
