"""`flowctl json-schema`."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
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
