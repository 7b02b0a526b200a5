"""`flowctl generate` and `flowctl json-schema`: files that editors and the code of derivations use."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import output_option, quiet_option, source_option
from derive.position import show


@click.command()
@source_option
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
@click.option("--cache", is_flag=True, help="Also fetch the libraries that TypeScript modules import.")
@output_option
@quiet_option
def command(source: Path, output: str | None, *, check: bool, cache: bool) -> None:
    """Write types for modules, and stubs for code files that the catalog names and that do not exist.

    Types are written to flow_generated/typescript/<collection>.ts in the project's outermost folder with a flow.yaml.
    With the deno.json in this folder, editors find the types; 'check', 'test' and 'run' do not need them. A stub is a
    TypeScript module with a method for each transform, or SQL with every $parameter.

    Libraries of TypeScript modules ('npm:', 'jsr:' and 'https:') are fetched only with --cache. A Python module with a
    pyproject.toml that lists dependencies gets an environment with them, unless it exists. 'check', 'test' and 'run'
    use these libraries and environments, without a network.

    Only files in flow_generated are overwritten; unused files in this folder are removed. Each file is listed with its
    outcome: created, updated, unchanged or removed.

    \b
    Exit codes: 0 if all files were written; 1 if the catalog has errors outside
    of its code (then only some files are written) or, with --check, if a file
    would change.

    \b
    Examples:
      flowctl generate
      flowctl generate --cache
      flowctl generate --source examples/acmebank/flow.yaml --check
    """
    from derive.catalog.generate import build_environments, cache_libraries, plan_changes, write_changes
    from derive.cli.console import note, print_rows
    from derive.errors import CatalogError, UsageError

    if check and cache:
        raise UsageError("--check changes nothing, and --cache fetches libraries: choose one")
    changes = plan_changes(source)
    if not check:
        write_changes(changes)
    rows = [{"what": change.outcome, "file": show(str(change.path))} for change in changes.files]
    print_rows(("what", "file"), rows, output)
    for generation_note in changes.notes:
        note(generation_note, style="yellow")
    for line in () if check else build_environments(changes.derivations):
        note(line)
    for line in cache_libraries(changes.derivations) if cache else ():
        note(line)
    if changes.issues:
        note("the catalog has errors: some files may not have been generated, and no file was removed")
        raise CatalogError(changes.issues)
    if check and any(change.outcome != "unchanged" for change in changes.files):
        note("files are not up to date; run 'flowctl generate' to create, update or remove the files listed")
        raise click.exceptions.Exit(1)


@click.command()
def json_schema_command() -> None:
    """Print the JSON Schema of flow.yaml (draft 2020-12); editors use it to complete and check the file.

    The schema includes the configuration of the installed connectors.

    \b
    Example, with the YAML language server of most editors:
      flowctl json-schema > flow.schema.json
      and as the first line of flow.yaml:
      # yaml-language-server: $schema=flow.schema.json
    """
    import json

    from connectors.kit.connector import find_materialize_connector, installed_materialize_connectors
    from derive.catalog.language.json_schema import catalog_schema
    from derive.cli.console import note
    from derive.errors import FlowError
    from derive.materialize.schemas import with_connectors

    schemas = {}
    for name in installed_materialize_connectors():
        try:
            spec = find_materialize_connector(name).spec()
        except FlowError as error:
            note(f"the schema lacks the configuration of connector '{name}': {error}", level="warn")
        else:
            schemas[name] = (spec.endpoint_schema, spec.resource_schema)
    click.echo(json.dumps(with_connectors(catalog_schema(), schemas), indent=2, ensure_ascii=False))
