"""`flowctl graph`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.console import visible
from derive.cli.options import source_option

if TYPE_CHECKING:
    from derive.catalog.graph import FlowGraph

_FORMS = ("text", "mermaid", "dot", "svg", "html", "json")
_SUFFIXES = {
    "": "text",
    ".txt": "text",
    ".mmd": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
    ".html": "html",
    ".json": "json",
}


@click.command()
@source_option
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMS),
    help="Format of the picture.  [default: by the suffix of --output, else text]",
)
@click.option("--output", "file", type=click.Path(path_type=Path), help="File to write.  [default: standard output]")
def command(source: Path, form: str | None, file: Path | None) -> None:
    """Draw a catalog's data flow: sources of each derivation, how each transform reads, and materializations.

    SVG and HTML pictures need no other program and load nothing from the network.

    \b
    Examples:
      flowctl graph
      flowctl graph --output flow.html
      flowctl graph --format dot | dot -Tpdf > flow.pdf
    """
    from derive.catalog import load
    from derive.catalog.graph import flow_graph
    from derive.cli.console import note
    from derive.errors import FlowError, UsageError

    if form is None and file is not None and file.suffix.lower() not in _SUFFIXES:
        hint = (
            f"name a file that ends with {', '.join(filter(None, _SUFFIXES))}, or give --format ({', '.join(_FORMS)})"
        )
        raise UsageError(f"{file}: unknown picture suffix '{file.suffix}'", hint=hint)
    form = form or (_SUFFIXES[file.suffix.lower()] if file else "text")
    text = render(flow_graph(load(source)), form, title=str(source))
    if file is None:
        click.echo(visible(text), nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8", newline="\n")
    except OSError as exc:
        raise FlowError(f"cannot write {file}: {exc.strerror or exc}") from exc
    note(f"wrote {file}")


def render(graph: FlowGraph, form: str, *, title: str) -> str:
    """Return the picture of a graph in one of the formats; formats with a heading show `title`."""
    from derive.cli.graph_picture import render_dot, render_html, render_mermaid, render_svg, render_text

    if form == "json":
        import json
        from dataclasses import asdict

        return json.dumps(asdict(graph), indent=2) + "\n"
    if form == "html":
        return render_html(graph, title)
    renderers = {"text": render_text, "mermaid": render_mermaid, "dot": render_dot, "svg": render_svg}
    return renderers[form](graph)
