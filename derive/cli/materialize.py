"""`flowctl materialize`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import output_option, source_option
from derive.cli.visible import visible

if TYPE_CHECKING:
    from derive.errors import Issue
    from derive.materialize.connector import Connectors
    from derive.materialize.preparation import PreparedMaterialization
    from derive.protocol.specs import MaterializationSpec


@click.group()
def command() -> None:
    """See what the materializations of a catalog would do to their endpoints."""


@command.command("plan")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@source_option
@output_option
def plan_command(names: tuple[str, ...], source: Path, output: str | None) -> None:
    """Say which fields are materialized, and what would be done to the endpoints before documents are stored.

    Connectors are asked, and nothing is changed. Without names, all materializations that are not disabled are
    planned. Secrets show as ***.

    With -o json, each materialization is an object on a line of its own: materialization, version, bindings (binding,
    collection, resource, key, values, document, deltaUpdates), and action (what would be done, or "").

    \b
    Exit codes: 0 if all of them could run, 1 if one could not, 2 if the command line makes no sense.

    \b
    Examples:
      flowctl materialize plan
      flowctl materialize plan acmeBank/warehouse -o json
    """
    import sys

    import orjson

    from derive.catalog import load
    from derive.cli.console import print_error
    from derive.errors import CatalogError, FlowError
    from derive.materialize.connector import Connectors

    catalog = load(source)
    chosen = [catalog.find_materialization(name) for name in names]
    specs = chosen or [spec for spec in catalog.materializations.values() if not spec.disabled]
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    issues: list[Issue] = []
    errors: list[FlowError] = []
    with Connectors() as connectors:
        for spec in specs:
            try:
                prepared, action = _plan(spec, connectors)
            except CatalogError as error:
                issues += error.issues
            except FlowError as error:
                errors.append(error)
            else:
                row = _row(prepared, action)
                click.echo(orjson.dumps(row) if as_json else visible("\n".join(_lines(prepared, action))))
    for failure in (*([CatalogError(issues)] if issues else ()), *errors):
        print_error(failure)
    if issues or errors:
        raise click.exceptions.Exit(1)


def _plan(spec: MaterializationSpec, connectors: Connectors) -> tuple[PreparedMaterialization, str]:
    from derive.materialize.preparation import prepare

    connector = connectors.connect(spec.endpoint)
    prepared = prepare(spec, connector)
    return prepared, prepared.apply(connector, dry_run=True)


def _row(prepared: PreparedMaterialization, action: str) -> dict[str, Any]:
    bindings = [
        {
            "binding": binding.spec.name,
            "collection": binding.spec.collection.name,
            "resource": binding.resource_path,
            "key": binding.fields.keys,
            "values": binding.fields.values,
            "document": binding.fields.document,
            "deltaUpdates": binding.delta_updates,
        }
        for binding in prepared.bindings
    ]
    return {
        "materialization": prepared.spec.name,
        "version": prepared.version,
        "bindings": bindings,
        "action": action,
    }


def _lines(prepared: PreparedMaterialization, action: str) -> Iterator[str]:
    yield prepared.spec.name
    for binding in prepared.bindings:
        how = "updates as they come" if binding.delta_updates else "one row per key"
        yield f"  {binding.spec.collection.name} -> {'.'.join(binding.resource_path)} ({how})"
        yield f"    key       {', '.join(binding.fields.keys)}"
        yield f"    values    {', '.join(binding.fields.values) or 'none'}"
        yield f"    document  {binding.fields.document or 'none'}"
    yield "  to be done:" if action else "  nothing is to be done"
    yield from (f"    {line}" for line in action.splitlines())
