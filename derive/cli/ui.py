"""`flowctl ui`."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import click

from derive.cli.options import catalog_options

_LIBRARIES = ("jinja2", "starlette", "uvicorn")
"""Libraries of the extra `ui`."""

_END_SECONDS = 10

_FREE_SECONDS = 2.0
"""Time to wait for a port that another process uses."""

beside_option = click.option(
    "--ui",
    "pages",
    metavar="HOST:PORT",
    help="Also serve web pages at this address of this machine, as flowctl ui does; port 0 picks a free one.",
)


@contextmanager
def pages_beside(listen: str | None, source: Path, folder: Path) -> Iterator[None]:
    """Serve pages in a process of their own, until the block ends or this process ends in any way.

    The pages take no time of this process. If they end before the block, a note says why, and the block continues.

    Args:
        listen: address of this machine, `HOST:PORT`; None for no pages.
        source: root file of the catalog.
        folder: the data folder, which exists.

    Raises:
        UsageError: the address is none, not one of this machine, or in use.
        FlowError: a library is missing.
    """
    if listen is None:
        yield
        return
    from derive.cli.sql_serve import address_of
    from derive.errors import UsageError
    from derive.materialize.process import guarded_command, installed_env
    from derive.web_access import is_loopback

    host, port = address_of(listen, "127.0.0.1:8080", "--ui")
    if not is_loopback(host):
        hint = "flowctl ui serves other addresses, with a secret and TLS"
        raise UsageError("--ui takes an address of this machine, such as 127.0.0.1:8080", hint=hint)
    _require_libraries()
    _require_free(host, port)
    ui = [sys.executable, "-P", "-m", "derive.cli.main", "ui", "--listen", listen]
    command = guarded_command([*ui, "--source", str(source), "--data", str(folder)])
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=installed_env()) as process:
        threading.Thread(target=_announce, args=(process,), name="ui", daemon=True).start()
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()


def _require_free(host: str, port: int) -> None:
    """Raise a `UsageError` if pages cannot listen at an address; the pages of a run that was killed end in a moment."""
    from derive.errors import UsageError
    from derive.web_access import listening_failure, port_hint

    end = time.monotonic() + _FREE_SECONDS
    while True:
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(place[:2], family=socket.AddressFamily(family)).close()
            return
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or time.monotonic() > end:
                message = f"--ui cannot listen at {host}:{port}: {listening_failure(exc)}"
                raise UsageError(message, hint=port_hint("--ui")) from exc
        time.sleep(0.1)


def _announce(process: subprocess.Popen[str]) -> None:
    """Print the address of pages, or the reason why they have ended."""
    from derive.cli.console import note

    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(ValueError):  # the block has ended
        if url := process.stdout.readline().strip():
            note(f"web pages at {url}")
        errors = process.stderr.read().strip()
        if (status := process.wait()) and (errors or not process.stdin.closed):  # the end of the block closes it
            reason = errors.removeprefix("error: ") or f"exit code {status}"
            note(f"the web pages have ended: {reason}", level="warn")


def _require_libraries() -> None:
    """Raise an error if a library of the pages is missing."""
    from derive.errors import FlowError

    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise FlowError(
            f"the pages need {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"install the missing libraries: pip install {' '.join(missing)}",
        )


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
@click.option("--allow-tests", is_flag=True, help="Let pages run the catalog's tests, which run its code.")
@click.option("--allow-writes", is_flag=True, help="Let statements of SQL write.")
@catalog_options
def command(
    listen: str,
    names: tuple[str, ...],
    token_file: Path | None,
    password_file: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    *,
    allow_tests: bool,
    allow_writes: bool,
    source: Path,
    data: Path | None,
) -> None:
    """Serve web pages that show the catalog and the data folder, live.

    The pages change nothing, unless --allow-tests or --allow-writes permits it.

    The pages need a browser on this machine, and no network. Another address than 127.0.0.1 needs a secret
    (--token-file or --password-file) and TLS (--tls-certificate), because the pages show all documents.

    The URL is printed on standard output when browsers can connect; the server runs until it is stopped.

    \b
    Examples:
      flowctl ui
      flowctl ui --listen 127.0.0.1:0 --data .flow
      flowctl ui --allow-tests
      flowctl ui --listen 10.0.0.5:8443 --token-file token \\
        --tls-certificate cert.pem --tls-key key.pem
      ssh -L 8080:127.0.0.1:8080 server flowctl ui
    """
    from derive.cli.console import note
    from derive.cli.foreground import stopping
    from derive.cli.sql_serve import address_of

    _require_libraries()
    from derive.ui.access import Permissions
    from derive.ui.folder import Folder
    from derive.ui.server import Address, serve

    host, port = address_of(listen, "127.0.0.1:8080")
    address = Address(host, port, names, token_file, password_file, tls_certificate, tls_key)
    address.check()

    def announce(url: str) -> None:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        note(f"open the URL in a browser; {stopping()}")

    permissions = Permissions(runs_tests=allow_tests, writes=allow_writes)
    folder = Folder(source, data)
    folder.require_catalog()
    serve(folder, permissions, address, announce)
