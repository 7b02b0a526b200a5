"""`flowctl sql serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.options import catalog_options, data_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from derive.adapter.coordinator import Coordinator
    from derive.adapter.outcome import Session
    from derive.adapter.server.server import Server

_THREADS = 64
"""Queries that are worked out at once."""


@click.command(name="serve")
@click.option(
    "--listen",
    default="127.0.0.1:6875",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect to; port 0 for any that is free.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Who may connect: user:password on each line. Without it, only this machine can.",
)
@click.option("--tls-certificate", metavar="PEM", help="Certificate that connections are encrypted with.")
@click.option("--tls-key", metavar="PEM", help="Its private key.  [default: in the same file]")
@click.option(
    "--max-connections", type=click.IntRange(min=1), default=400, show_default=True, help="Clients that there may be."
)
@click.option(
    "--max-result-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Fail where a result has more bytes than that.  [default: any number]",
)
@catalog_options
def command(
    listen: str,
    password_file: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    max_connections: int,
    max_result_bytes: int | None,
    source: Path,
    data: Path | None,
) -> None:
    """Serve collections to PostgreSQL's clients.

    Prints the address on standard output as soon as clients can connect, and serves until it is stopped.

    \b
    Examples:
      flowctl sql serve
      psql -h 127.0.0.1 -p 6875 -c 'SELECT * FROM "acmeBank/balances"'
    """
    import asyncio

    from derive.adapter.server.passwords import Passwords
    from derive.adapter.server.server import Server, tls_context
    from derive.catalog import load
    from derive.errors import UsageError

    host, port = _address(listen)
    if tls_key and not tls_certificate:
        raise UsageError("--tls-key is the key of a certificate", hint="give it with --tls-certificate")
    passwords = Passwords.of_file(password_file) if password_file else None
    tls = tls_context(tls_certificate, tls_key) if tls_certificate else None
    catalog = load(source) if source.exists() or data is None else None

    async def serve() -> None:
        from derive.adapter.coordinator import Coordinator

        coordinator = Coordinator(data_folder(source, data), catalog)
        try:
            coordinator.own()
            server = Server(
                _sessions(coordinator, max_result_bytes),
                passwords=passwords,
                tls=tls,
                most_connections=max_connections,
                on_defect=_tell_defect,
            )
            await _serve(server, host, port, coordinator.ownership.announce)
        finally:
            await coordinator.close()

    asyncio.run(serve())


def _sessions(coordinator: Coordinator, most_bytes: int | None) -> Callable[[Mapping[str, str]], Session]:
    from derive.adapter.described import described
    from derive.adapter.pg_catalog.session import DescribingSession
    from derive.adapter.savepoints import SavepointSession
    from derive.adapter.session import SqlSession

    def open_session(begun: Mapping[str, str]) -> Session:
        session = SqlSession(coordinator, begun, most_bytes)
        describing = DescribingSession(session, lambda: described(coordinator.refresh()), lambda: session.parameters)
        return SavepointSession(describing)

    return open_session


async def _serve(server: Server, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until a signal asks for the end."""
    import asyncio
    import signal
    from concurrent.futures import ThreadPoolExecutor

    from derive.cli.console import note

    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="flowctl-sql"))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listening, listening_port = await server.listen(host, port)
    address = f"[{listening}]:{listening_port}" if ":" in listening else f"{listening}:{listening_port}"
    announce(address)
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
    note(f"serving SQL: psql -h {listening} -p {listening_port} -U flow")
    try:
        await stopped.wait()
    finally:
        await server.close()


def _tell_defect(error: BaseException) -> None:
    import traceback

    from derive.cli.console import note

    note("internal error: " + "".join(traceback.format_exception(error)), level="warn")


def _address(listen: str) -> tuple[str, int]:
    """The host and the port of an address.

    Raises:
        UsageError: it is none.
    """
    from derive.errors import UsageError

    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535 or not host:
        raise UsageError(f"--listen takes HOST:PORT, and not {listen}", hint="such as 127.0.0.1:6875")
    return host.strip("[]"), int(port)
