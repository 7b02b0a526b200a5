"""`flowctl ui`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from derive.cli.options import catalog_options

_LIBRARIES = ("jinja2", "starlette", "uvicorn")
"""Libraries of the extra `ui`."""


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Address that browsers connect to; port 0 picks a free one.",
)
@click.option(
    "--host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another host name under which browsers reach the pages; may be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with a secret, which is the password of every user.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the users who may connect, as for flowctl sql serve.",
)
@click.option("--tls-certificate", metavar="PEM", help="Certificate that encrypts connections.")
@click.option("--tls-key", metavar="PEM", help="Private key of the certificate.  [default: in the same file]")
@catalog_options
def command(
    listen: str,
    names: tuple[str, ...],
    token_file: Path | None,
    password_file: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    source: Path,
    data: Path | None,
) -> None:
    """Serve web pages that show the catalog and the data folder, live. The pages change nothing.

    The pages need a browser on this machine, and no network. Another address than 127.0.0.1 needs a secret
    (--token-file or --password-file) and TLS (--tls-certificate), because the pages show all documents.

    The URL is printed on standard output when browsers can connect; the server runs until it is stopped.

    \b
    Examples:
      flowctl ui
      flowctl ui --listen 127.0.0.1:0 --data .flow
      flowctl ui --listen 10.0.0.5:8443 --token-file token \\
        --tls-certificate cert.pem --tls-key key.pem
      ssh -L 8080:127.0.0.1:8080 server flowctl ui
    """
    from derive.cli.console import note
    from derive.cli.sql_serve import address_of
    from derive.errors import FlowError

    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise FlowError(
            f"the pages need {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="install the extra: pip install 'derive-flow[ui]'",
        )
    from derive.ui.folder import Folder
    from derive.ui.server import Address, serve

    host, port = address_of(listen, "127.0.0.1:8080")
    address = Address(host, port, names, token_file, password_file, tls_certificate, tls_key)
    address.check()

    def announce(url: str) -> None:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        note("serving pages until Ctrl-C; open the URL in a browser")

    serve(Folder(source, data), address, announce)
