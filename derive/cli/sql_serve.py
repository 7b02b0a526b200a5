"""`flowctl sql serve`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import visible
from derive.cli.monitoring import monitoring_options, shown
from derive.cli.options import (
    catalog_options,
    created_folder,
    optional_catalog,
    quiet_option,
    segments_option,
    settle_metadata,
)
from derive.cli.ui import beside_option, pages_beside
from derive.plural import counted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from ssl import SSLContext

    from derive.cli.monitoring import Monitoring, Part
    from derive.sql.backends import Backends
    from derive.sql.coordinator import Coordinator
    from derive.sql.execution.state import User
    from derive.sql.maintenance.controller.remote import Instances
    from derive.sql.pgwire.connection import OpenSession
    from derive.sql.pgwire.passwords import Passwords
    from derive.sql.pgwire.server import Server
    from derive.sql.results import Session
    from derive.sql.sources.followed_file import FileAccess
    from derive.sql.transactions.ownership import Ownership

_THREADS = 64
"""Maximum number of queries computed at the same time."""

_MOST_REPLICAS = 16


@click.command(name="serve")
@click.option(
    "--listen",
    default="127.0.0.1:6875",
    show_default=True,
    metavar="HOST:PORT",
    help="Address that clients connect to; port 0 picks a free one.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the users who may connect: user:password on each line.  [default: only clients of this machine]",
)
@click.option(
    "--files",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder of files that may be sources, for users marked [files] in the password file; may be repeated."
    "  [default: none with a password file, else all]",
)
@click.option("--tls-certificate", metavar="PEM", help="Certificate that encrypts connections.")
@click.option("--tls-key", metavar="PEM", help="Private key of the certificate.  [default: in the same file]")
@click.option(
    "--max-connections", type=click.IntRange(min=1), default=400, show_default=True, help="Maximum number of clients."
)
@click.option(
    "--login-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=15,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for a login.",
)
@click.option(
    "--max-result-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Fail if a result has more bytes.  [default: no limit]",
)
@click.option(
    "--table-memory",
    type=click.IntRange(min=0),
    default=64 << 20,
    show_default=True,
    metavar="N",
    help="Bytes of memory for copies of small tables, which speed up queries without an index; 0 for none.",
)
@click.option(
    "--retention",
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="Time for which history is kept for AS OF, even if collections are compacted.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=0, max=_MOST_REPLICAS),
    default=0,
    metavar="N",
    help="Start N compute instances, as processes that maintain the same views.  [default: one, in this process]",
)
@click.option(
    "--instance",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Use a compute instance that `flowctl compute` serves at this address; may be repeated.",
)
@click.option(
    "--compute-token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the secret that these instances share.",
)
@click.option("--compute-tls-certificate", metavar="PEM", help="Certificate of this server, for mutual TLS with them.")
@click.option("--compute-tls-key", metavar="PEM", help="Private key of the certificate.  [default: in the same file]")
@click.option("--compute-tls-authority", metavar="PEM", help="Certificate of the authority that signs instances.")
@monitoring_options("sql serve")
@beside_option
@catalog_options
@segments_option
@quiet_option
def command(
    listen: str,
    password_file: Path | None,
    folders: tuple[Path, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    max_connections: int,
    login_timeout: float,
    max_result_bytes: int | None,
    *,
    source: Path,
    data: Path | None,
    pages: str | None,
    table_memory: int,
    retention: str,
    replicas: int,
    addresses: tuple[str, ...],
    monitoring: Monitoring,
    **security: Any,
) -> None:
    """Serve collections to PostgreSQL's clients.

    The address is printed on standard output when clients can connect; the server runs until it is stopped.

    \b
    Examples:
      flowctl sql serve
      psql -h 127.0.0.1 -p 6875 -c 'SELECT * FROM "acmeBank/balances"'
      flowctl sql serve --replicas 2
      flowctl sql serve --instance 127.0.0.1:6876 --compute-token-file secret
    """
    host, port = address_of(listen, "127.0.0.1:6875")
    passwords, tls = _clients(password_file, tls_certificate, tls_key)
    kept = _duration(retention)
    folder = settle_metadata(created_folder(source, data), creates=True)
    files = _files(folders, [folder, password_file, tls_certificate, tls_key, *security.values()], passwords)
    instances = _instances(folder, replicas, addresses, **security)
    with monitoring.served() as monitor, _started(folder, instances) as ownership, pages_beside(pages, source, folder):
        import asyncio

        from derive.event_loop import new_event_loop
        from derive.sql.pgwire.server import Server

        catalog = optional_catalog(source, data)

        async def serve() -> None:
            from derive.sql.coordinator import Coordinator

            coordinator = Coordinator(folder, catalog, kept, instances, files, table_memory, ownership)
            try:
                coordinator.own()
                await asyncio.to_thread(coordinator.maintenance_thread.follow)
                most, most_waiting = _connections(max_connections)
                server = Server(
                    _sessions(coordinator, max_result_bytes, most, passwords),
                    passwords=passwords,
                    tls=tls,
                    most_connections=most,
                    most_waiting=most_waiting,
                    login_seconds=login_timeout,
                    on_defect=_report_defect,
                )
                with shown(monitor, partial(_metrics, coordinator, server)):
                    await _serve(server, host, port, coordinator.store.serving.announce, coordinator.stopped)
                coordinator.store.fence.check()
            finally:
                await coordinator.close()

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())


def _metrics(coordinator: Coordinator, server: Server) -> Part:
    from derive.metrics.sql_server import SqlMetrics

    return SqlMetrics(coordinator, server)


def _clients(
    password_file: Path | None, certificate: str | None, key: str | None
) -> tuple[Passwords | None, SSLContext | None]:
    """Return the passwords of users who may connect, or None, and the TLS context, or None.

    Raises:
        UsageError: options contradict one another, or a file cannot be read.
    """
    from derive.errors import UsageError

    if key and not certificate:
        raise UsageError("--tls-key needs a certificate", hint="give it with --tls-certificate")
    passwords = tls = None
    if password_file:
        from derive.sql.pgwire.passwords import Passwords

        passwords = Passwords.of_file(password_file)
    if certificate:
        from derive.sql.pgwire.server import tls_context

        tls = tls_context(certificate, key)
    return passwords, tls


@contextmanager
def _started(folder: Path, instances: Instances) -> Iterator[Ownership | None]:
    """Start the replica processes, so that they start while this process imports its modules.

    In a data folder without SQL, the replicas have no rows to load, so they start later.
    """
    from derive.sql.transactions.ownership import Ownership
    from derive.storage.metadata.opening import is_data_folder
    from derive.storage.store import Store

    ownership = Ownership(Store(folder)) if is_data_folder(folder) else None
    try:
        if ownership is not None and ownership.store.serving.was_ever_held():
            ownership.require()
            instances.start(folder)
        yield ownership
    finally:
        instances.close()
        if ownership is not None:
            ownership.release()
            ownership.store.close()


def _instances(
    data: Path,
    replicas: int,
    addresses: tuple[str, ...],
    compute_token_file: Path | None,
    compute_tls_certificate: str | None,
    compute_tls_key: str | None,
    compute_tls_authority: str | None,
) -> Instances:
    """Return the compute instances that options name.

    Raises:
        UsageError: an address is wrong, or given twice.
    """
    from derive.cli.compute import security_of
    from derive.compute.protocol.transport import place_named, place_of
    from derive.errors import UsageError
    from derive.sql.maintenance.controller.remote import Instances

    security = security_of(compute_token_file, compute_tls_certificate, compute_tls_key, compute_tls_authority)
    for address in addresses:
        place_of(address, "--instance", security)
    if len(set(map(place_named, addresses))) < len(addresses):
        raise UsageError("--instance names an instance twice", hint="name each once")
    log_format = click.get_current_context().find_root().params.get("log_format", "text")
    return Instances(replicas, partial(_replica_command, log_format, data), _print_line, addresses, security)


def _replica_command(log_format: str, data: Path, folder: Path, token_file: Path) -> list[str]:
    """Return the command that runs a compute instance which ends with this process."""
    command = [sys.executable, "-P", "-m", "derive.cli.main", f"--log-format={log_format}", "compute"]
    where = [f"--data={data.resolve()}", f"--folder={folder.resolve()}", f"--token-file={token_file.resolve()}"]
    return [*command, "--listen=127.0.0.1:0", *where, "--end-with-input"]


def _print_line(line: str) -> None:
    sys.stderr.write(visible(line) + "\n")
    sys.stderr.flush()


def _connections(most: int) -> tuple[int, int]:
    """Return the numbers of clients, and of connections at login, that the limit of open files allows.

    Connections never use the file descriptors that queries of clients need.
    """
    from derive.cli.console import note
    from derive.sql.pgwire.server import raised_limit, shares

    limit = raised_limit()
    connections, waiting = shares(most, limit)
    if connections < most:
        served = f"at most {counted(connections, 'client')} instead of {most}"
        what = f"the server has room for {served}, because only {limit:,} files may be open"
        note(f"{what}: raise the limit with `ulimit -n`", level="warn")
    return connections, waiting


def _files(folders: Sequence[Path], secret: Iterable[Path | str | None], passwords: Passwords | None) -> FileAccess:
    """Return the files that sources may read: all files, or the given folders without files that hold secrets."""
    from derive.sql.sources.followed_file import ALL_FILES, FileAccess

    if passwords is None and not folders:
        return ALL_FILES
    return FileAccess(folders, [Path(path) for path in secret if path])


def _sessions(
    coordinator: Coordinator, most_bytes: int | None, most_connections: int, passwords: Passwords | None
) -> OpenSession:
    from derive.sql.session import SqlSession

    fixed = {"max_connections": str(most_connections)}

    def open_session(begun: Mapping[str, str], backends: Backends) -> Session:
        user = _user(begun["user"], passwords)
        return SqlSession(coordinator, begun, most_bytes, backends, fixed, user)

    return open_session


def _user(name: str, passwords: Passwords | None) -> User:
    from derive.sql.execution.state import User
    from derive.sql.pgwire.passwords import CHANGES_REPLICAS, READS_FILES

    if passwords is None:
        return User(name)
    reads_files, changes_replicas = (passwords.has_mark(name, mark) for mark in (READS_FILES, CHANGES_REPLICAS))
    return User(name, reads_files=reads_files, changes_replicas=changes_replicas, names=passwords.names)


async def _serve(server: Server, host: str, port: int, announce: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Serve until a signal or another part of the process sets `stopped`."""
    import asyncio
    import signal
    from concurrent.futures import ThreadPoolExecutor

    from derive.cli.console import note

    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="flowctl-sql"))
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


def _report_defect(error: BaseException) -> None:
    import traceback

    from derive.cli.console import note

    note("internal error: " + "".join(traceback.format_exception(error)), level="warn")


def _duration(retention: str) -> int:
    """Parse the duration for which history is kept, in microseconds.

    Raises:
        UsageError: the text is not a duration.
    """
    from derive.document.clock import parse_duration
    from derive.errors import UsageError

    try:
        return parse_duration(retention)
    except ValueError as exc:
        raise UsageError(f"--retention: {exc}") from exc


def address_of(listen: str, example: str, option: str = "--listen") -> tuple[str, int]:
    """Return the host and the port of the address that an option gives.

    Raises:
        UsageError: the text is not HOST:PORT.
    """
    from derive.errors import UsageError

    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535 or not host:
        raise UsageError(f"{option} takes HOST:PORT, not {listen}", hint=f"such as {example}")
    return host.strip("[]"), int(port)
