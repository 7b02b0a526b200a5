"""`flowctl compute`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.monitoring import monitoring_options, shown
from derive.cli.options import DataFolder, metadata_option, open_store

if TYPE_CHECKING:
    import threading

    from derive.cli.monitoring import Monitoring, Part
    from derive.compute.protocol.messages import Welcome
    from derive.compute.protocol.transport import Security
    from derive.compute.replica.worker import Worker
    from derive.storage.store import Store

_FOLDER = "compute"


@click.command(name="compute")
@click.option(
    "--listen",
    default="127.0.0.1:6876",
    show_default=True,
    metavar="HOST:PORT",
    help="Address that controllers connect to; port 0 picks a free one.",
)
@click.option(
    "--data",
    envvar="FLOW_DATA",
    required=True,
    type=DataFolder(path_type=Path, file_okay=False, exists=True),
    help="The data folder; with --metadata, also a URL.  [env FLOW_DATA]",
)
@metadata_option
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder where this instance caches computed rows.  [default: one per port in the data folder]",
)
@click.option(
    "--end-with-input", is_flag=True, help="End once standard input is closed, because the parent process has ended."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with a secret that the controller shares.",
)
@click.option("--tls-certificate", metavar="PEM", help="Certificate of this instance, for mutual TLS.")
@click.option("--tls-key", metavar="PEM", help="Private key of the certificate.  [default: in the same file]")
@click.option("--tls-authority", metavar="PEM", help="Certificate of the authority that signs controllers.")
@monitoring_options("compute")
def command(
    listen: str,
    data: Path,
    folder: Path | None,
    token_file: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    *,
    end_with_input: bool,
    monitoring: Monitoring,
) -> None:
    """Serve a compute instance: it maintains views and answers queries for `flowctl sql serve --instance`.

    The instance runs on the same machine as that server: only one machine may use a data folder at a time. With the
    metadata in PostgreSQL, the instance may run on another machine, and begin with an empty data folder if the segments
    are in an object store.

    The address is printed on standard output when controllers can connect. The instance runs until it is stopped. Its
    folder caches computed rows, so that the instance can resume. If the cache is deleted, the rows are computed again.

    \b
    Examples:
      flowctl compute --data .flow --listen 127.0.0.1:6876
      flowctl sql serve --data .flow --instance 127.0.0.1:6876
    """
    import signal
    import threading
    from contextlib import closing

    from derive.compute.protocol.transport import place_of
    from derive.compute.replica.worker import InstanceServer, Worker, locked

    security = security_of(token_file, tls_certificate, tls_key, tls_authority)
    _, port = place_of(listen, "--listen", security, listens=True)
    place = folder or data / _FOLDER / str(port)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    if end_with_input:
        threading.Thread(target=_follow_input, args=(stopped,), daemon=True).start()
    reports = _Reports()
    with monitoring.served() as monitor, locked(place), closing(open_store(data)) as store:
        worker = Worker(store, place, "compute", partial(_report, store, reports, stopped), reports.welcomed)
        server = InstanceServer(worker.reconciler, listen, security)
        with shown(monitor, partial(_metrics, store, worker, reports)):
            sys.stdout.write(server.address + "\n")
            sys.stdout.flush()
            stopped.wait()
        server.stop()
        worker.close()
        store.fence.check()


def _report(store: Store, reports: _Reports, stopped: threading.Event, failure: Exception | None) -> None:
    """Report a failure, or the end of failures; stop the instance if it can no longer commit."""
    reports.failed(failure)
    if store.metadata.lost is not None:
        stopped.set()


def _metrics(store: Store, worker: Worker, reports: _Reports) -> Part:
    from derive.metrics.sql_server import ComputeMetrics

    return ComputeMetrics(store, worker, reports)


def _follow_input(stopped: threading.Event) -> None:
    """Stop once standard input is closed."""
    while os.read(0, 4096):
        pass
    stopped.set()


class _Reports:
    """Prints the reports of a worker, and counts them.

    Attributes:
        sessions: number of sessions of controllers.
        failures: number of failures of work.
    """

    def __init__(self) -> None:
        self.sessions = self.failures = 0

    def welcomed(self, welcome: Welcome) -> None:
        """Report a session of a controller."""
        from derive.cli.console import note

        self.sessions += 1
        note(f"a controller (epoch {welcome.epoch}) is connected: {welcome.process} {welcome}")

    def failed(self, failure: Exception | None) -> None:
        """Report a failure, or the end of failures."""
        from derive.cli.console import note

        if failure is None:
            note("work has resumed")
        else:
            self.failures += 1
            note(f"work failed and is retried: {failure}", level="warn")


def security_of(token_file: Path | None, certificate: str | None, key: str | None, authority: str | None) -> Security:
    """Return the credentials with which a controller and an instance authenticate one another.

    Raises:
        UsageError: an option is missing, or a file cannot be read.
    """
    from derive.compute.protocol.transport import Security
    from derive.errors import UsageError

    if (key or authority) and not certificate:
        raise UsageError("--tls-key and --tls-authority need a certificate", hint="give it with --tls-certificate")
    try:
        token = token_file.read_text().strip() if token_file else None
        pem = Path(certificate).read_bytes() if certificate else None
        secret = Path(key).read_bytes() if key else pem
        signer = Path(authority).read_bytes() if authority else None
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    if token == "":
        raise UsageError(f"{token_file} is empty", hint="write the same secret into the token file of both ends")
    return Security(token, pem, secret, signer)
