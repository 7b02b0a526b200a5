"""`flowctl json-schema`."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of flow.yaml (draft 2020-12), with which editors complete and check it.

    \b
    Example, with the YAML language server of most editors:
      flowctl json-schema > flow.schema.json
      and as the first line of flow.yaml:
      # yaml-language-server: $schema=flow.schema.json
    """
    import json

    from derive.catalog.language.json_schema import catalog_schema

    click.echo(json.dumps(catalog_schema(), indent=2, ensure_ascii=False))
