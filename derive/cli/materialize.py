"""`flowctl materialize` and `flowctl connector`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import fitted, visible
from derive.cli.options import catalog_options, output_option, stored_folder, wide_option
from derive.cli.pasting import pasteable

if TYPE_CHECKING:
    from derive.document.pointer import JSON
    from derive.errors import Issue
    from derive.materialize.preparation import PreparedMaterialization
    from derive.materialize.restarts import ResetMarker
    from derive.protocol.specs import MaterializationSpec
    from derive.storage.metadata.descriptions import TaskState


@click.group()
def command() -> None:
    """Plan the changes that a catalog's materializations would make to their endpoints.

    \b
    Examples:
      flowctl materialize plan acmeBank/warehouse
    """


@command.command("plan")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@catalog_options
@output_option
def plan_command(names: tuple[str, ...], source: Path, data: Path | None, output: str | None) -> None:
    """List materialized fields, and the changes to endpoints that a run would make before it stores documents.

    The connectors return their plans, and no endpoint is changed. The plan also shows edits that a run would not apply
    without your acceptance. Without names, all materializations that are not disabled are planned. Secrets are shown as
    ***.

    With -o json, each materialization is one object per line: materialization, version, bindings (binding, collection,
    resource, key, values, document, deltaUpdates, leftOut), action (the planned changes, or ""), unaccepted (edits that
    the next run waits with), and notes (rows that a connector cannot refill).

    \b
    Exit codes: 0 if all could run, 1 if one could not, 2 if the command line is
    wrong.

    \b
    Examples:
      flowctl materialize plan
      flowctl materialize plan acmeBank/warehouse -o json
    """
    import sys

    import orjson

    from derive.catalog import load_without_tests
    from derive.cli.console import note, print_error
    from derive.errors import CatalogError, FlowError
    from derive.materialize.connector import Connectors
    from derive.planning.differences import plan_endpoint

    catalog = load_without_tests(source)
    folder = stored_folder(source, data)
    chosen = [catalog.find_materialization(name) for name in names]
    specs = chosen or [spec for spec in catalog.materializations.values() if not spec.disabled]
    if not specs:
        note("the catalog has no materialization that is enabled")
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    issues: list[Issue] = []
    errors: list[FlowError] = []
    with Connectors() as connectors:
        for spec in specs:
            try:
                task, restart = _past(folder, spec)
                prepared, action = plan_endpoint(restart, spec, connectors, task)
            except CatalogError as error:
                issues += error.issues
            except FlowError as error:
                errors.append(error)
            else:
                unaccepted, notes = _unaccepted(spec, task), _notes(prepared, task, restart)
                row = _row(prepared, action, unaccepted, notes)
                text = "\n".join(_lines(prepared, action, unaccepted, notes))
                click.echo(orjson.dumps(row) if as_json else fitted(visible(text)))
    for failure in (*([CatalogError(issues)] if issues else ()), *errors):
        print_error(failure)
    if issues or errors:
        raise click.exceptions.Exit(1)


def _past(folder: Path, spec: MaterializationSpec) -> tuple[TaskState | None, ResetMarker]:
    """Return the state of a materialization in a data folder, if there is one, and its last reset."""
    from derive.cli.options import open_store
    from derive.materialize.restarts import ResetMarker, last_reset
    from derive.storage.metadata.opening import is_data_folder

    if not is_data_folder(folder):
        return None, ResetMarker()
    store = open_store(folder, reading=True)
    try:
        return store.task(spec.name), last_reset(store, spec.name)
    finally:
        store.close()


def _unaccepted(spec: MaterializationSpec, task: TaskState | None) -> list[str]:
    """Return the edits that the next run waits with."""
    from derive.engine.stored_bindings import find_stored_edits

    return [f"{edit.message} ({edit.hint})" for edit in find_stored_edits(spec, task)] if task else []


def _notes(prepared: PreparedMaterialization, task: TaskState | None, restart: ResetMarker) -> list[str]:
    """Return notes about rows that stay or may have stayed when a binding starts over."""
    from derive.engine.stored_bindings import remembered_edits, stale_rows

    stale = stale_rows(prepared, task, restart)
    remembered = remembered_edits(prepared.spec, task) if task else ()
    return list(dict.fromkeys(f"{edit.message} ({edit.hint})" for edit in (*remembered, *stale)))


def _row(
    prepared: PreparedMaterialization, action: str, unaccepted: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    bindings = [
        {
            "binding": binding.spec.name,
            "collection": binding.spec.collection.name,
            "resource": binding.resource_path,
            "key": binding.fields.keys,
            "values": binding.fields.values,
            "document": binding.fields.document,
            "deltaUpdates": binding.delta_updates,
            "leftOut": binding.fields.left_out,
        }
        for binding in prepared.bindings
    ]
    return {
        "materialization": prepared.spec.name,
        "version": prepared.version,
        "bindings": bindings,
        "action": action,
        "unaccepted": list(unaccepted),
        "notes": list(notes),
    }


def _lines(
    prepared: PreparedMaterialization, action: str, unaccepted: Sequence[str], notes: Sequence[str]
) -> Iterator[str]:
    from derive.materialize.preparation import show_left_out  # imports gRPC

    yield prepared.spec.name
    for binding in prepared.bindings:
        how = "delta updates" if binding.delta_updates else "one row per key"
        yield f"  {binding.spec.collection.name} -> {'.'.join(binding.resource_path)} ({how})"
        yield f"    key       {', '.join(binding.fields.keys)}"
        yield f"    values    {', '.join(binding.fields.values) or 'none'}"
        yield f"    document  {binding.fields.document or 'none'}"
        if binding.fields.left_out:
            yield f"    {show_left_out(binding.fields)}"
    yield "  planned changes:" if action else "  no changes are planned"
    yield from (f"    {line}" for line in action.splitlines())
    if unaccepted:
        yield pasteable(f"  edits to accept with flowctl run --accept {prepared.spec.name}:")
        yield from (f"    {pasteable(line)}" for line in unaccepted)
    if notes:
        yield "  notes:"
        yield from (f"    {line}" for line in notes)


@click.group()
def connector_command() -> None:
    """List, describe and serve the installed materialize connectors.

    \b
    Examples:
      flowctl connector list
      flowctl connector describe materialize-postgres
    """


@connector_command.command("list")
@output_option
def list_command(output: str | None) -> None:
    """List the installed materialize connectors, by the names of their images.

    \b
    Examples:
      flowctl connector list
      flowctl connector list -o json
    """
    from connectors.kit.connector import installed_materialize_connectors
    from derive.cli.console import print_rows

    entries = installed_materialize_connectors()
    print_rows(["connector", "class"], [{"connector": name, "class": entries[name]} for name in entries], output)


@connector_command.command("describe")
@click.argument("connector", metavar="NAME", required=False)
@output_option
@wide_option
def describe_command(connector: str | None, output: str | None, *, wide: bool) -> None:
    """List the options of a connector: those of its endpoint, and those of the resource of each binding.

    In a catalog, the options of the endpoint are below 'endpoint: connector: config:', and the options of a resource
    are below 'resource:' of a binding.

    With -o json, each option is one object per line: of (endpoint or resource), option, type, required, secret, default
    and description.

    \b
    Examples:
      flowctl connector describe materialize-postgres
      flowctl connector describe materialize-files -o json | jq .option
    """
    from connectors.kit.connector import find_materialize_connector, installed_materialize_connectors
    from derive.cli.console import note, print_rows
    from derive.errors import UsageError

    if connector is None:
        installed = ", ".join(installed_materialize_connectors())
        raise UsageError("the name of a connector is missing", hint=f"installed connectors: {installed}")
    print_rows(_OPTION_COLUMNS, option_rows(connector), output, spare=("secret", "default"), wide=wide)
    note(f"documentation of {connector}: {find_materialize_connector(connector).spec().documentation_url}")


def option_rows(connector: str) -> list[dict[str, JSON]]:
    """Return a row for each option of a connector, as `flowctl connector describe -o json` prints it."""
    from connectors.kit.connector import find_materialize_connector

    spec = find_materialize_connector(connector).spec()
    parts = {"endpoint": spec.endpoint_schema, "resource": spec.resource_schema}
    return [{"of": part, **row} for part, schema in parts.items() for row in _options(schema, "")]


_OPTION_COLUMNS = ("of", "option", "type", "required", "secret", "default", "description")


def _options(schema: dict[str, JSON], within: str) -> Iterator[dict[str, JSON]]:
    """Yield a row for each option in a JSON schema; options of objects follow these, such as `tls.mode`."""
    for name, option in schema.get("properties", {}).items():
        yield {
            "option": f"{within}{name}",
            "type": _type(option),
            "required": "yes" if name in schema.get("required", ()) else "no",
            "secret": "yes" if option.get("secret") else "no",
            "default": _text(option["default"]) if "default" in option else None,
            "description": option.get("description", ""),
        }
        yield from _options(option, f"{within}{name}.")


def _type(schema: dict[str, JSON]) -> str:
    """Return the type of an option as text, with its permitted values or bounds."""
    if "const" in schema:
        return f"always {_text(schema['const'])}"
    if "enum" in schema:
        return " | ".join(map(_text, schema["enum"]))
    types = schema.get("type", "any")
    text = types if isinstance(types, str) else " | ".join(types)
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and "type" in values:
        text += f" of {values['type']}s"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[bound]}" for bound, sign in signs.items() if bound in schema]
    return " ".join([text, *bounds])


def _text(value: JSON) -> str:
    """Return a value as text; a string is written without quotes."""
    from derive.document.exact import dump_exact

    return value if isinstance(value, str) else dump_exact(value).decode()


@connector_command.command("serve")
@click.argument("connector", metavar="NAME")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free one.",
)
def serve_command(connector: str, listen: str) -> None:
    """Serve a materialize connector over gRPC, until standard input ends or SIGTERM.

    The first line on standard output is the address, HOST:PORT, which is printed when the connector is ready. `flowctl
    run` starts connectors itself; this command is for catalogs that name the `address` of a connector, perhaps on
    another machine. The connection has no password and no encryption: listen only where trusted clients can connect.
    With /dev/null as standard input, only a signal stops the connector.

    \b
    Examples:
      flowctl connector serve materialize-sqlite
      flowctl connector serve materialize-postgres --listen 10.0.0.5:7000 \\
        < /dev/null
    """
    from connectors.kit.connector import find_materialize_connector
    from connectors.kit.servicer import serve
    from derive.cli.pipes import discard_unread

    serve(find_materialize_connector(connector), listen)
    discard_unread()  # the parent may have been killed; output without a reader would make the exit code 120
