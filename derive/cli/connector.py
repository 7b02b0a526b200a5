"""`flowctl connector`."""

from __future__ import annotations

import click

from derive.cli.options import output_option


@click.group()
def command() -> None:
    """List the installed materialize connectors, and serve one of them."""


@command.command("list")
@output_option
def list_command(output: str | None) -> None:
    """List the installed materialize connectors, by the names of their images."""
    from connectors.kit.connector import installed_materialize_connectors
    from derive.cli.console import print_rows

    entries = installed_materialize_connectors()
    print_rows(["connector", "class"], [{"connector": name, "class": entries[name]} for name in entries], output)


@command.command("serve")
@click.argument("name")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free one.",
)
def serve_command(name: str, listen: str) -> None:
    """Serve a materialize connector over gRPC, until standard input ends or SIGTERM.

    The first line on standard output is the address, HOST:PORT, which is printed when the connector is ready. `flowctl
    run` starts connectors itself; this command is for catalogs that name the `address` of a connector, perhaps on
    another machine. The connection has no password and no encryption: listen only where trusted clients can connect.
    With /dev/null as standard input, only a signal stops the connector.

    \b
    Examples:
      flowctl connector serve materialize-sqlite
      flowctl connector serve materialize-postgres --listen 10.0.0.5:7000 < /dev/null
    """
    from connectors.kit.connector import find_materialize_connector
    from connectors.kit.servicer import serve
    from derive.cli.pipes import discard_unread

    serve(find_materialize_connector(name), listen)
    discard_unread()  # the parent may have been killed; output without a reader would make the exit code 120
