"""Options with which a process shows itself to monitoring systems: `--metrics`, `--metrics-host` and `--traces`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from derive.engine.run import Observer, Run
    from derive.instruments import Sample
    from derive.metrics.monitor import Monitor, Readiness
    from derive.metrics.run import CountingObserver, HasStarted
    from derive.storage.roles import Readable

_LOOPBACK = "127.0.0.1"

traces_option = click.option(
    "--traces",
    is_flag=True,
    help="Send a span of each transaction to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra 'otel'.",
)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The options of a command.

    Attributes:
        command: the command.
        address: host and port of the monitor; None for no monitor.
        hosts: further host names under which clients use it.
    """

    command: str
    address: tuple[str, int] | None
    hosts: tuple[str, ...]

    @contextmanager
    def served(self) -> Iterator[Monitor | None]:
        """Serve a monitor in the block, and yield it; None without an address.

        Raises:
            UsageError: the address cannot be used.
        """
        if self.address is None:
            yield None
            return
        from derive.cli.console import note
        from derive.metrics.monitor import Monitor
        from derive.metrics.server import MonitorServer

        monitor = Monitor(self.command)
        server = MonitorServer(monitor, *self.address, self.hosts)
        try:
            note(f"metrics at http://{server.address}/metrics")
            yield monitor
        finally:
            monitor.end()
            server.close()

    @contextmanager
    def observed(self, observer: Observer, *, has_traces: bool) -> Iterator[ObservedRun]:
        """Serve a monitor of a run in the block, and send its traces.

        Args:
            observer: receives the events of the run.
            has_traces: whether to send traces.

        Raises:
            UsageError: the address cannot be used.
            FlowError: the libraries of traces are not installed.
        """
        with self.served() as monitor, _tracing(observer, has_traces=has_traces) as traced:
            if monitor is None:
                yield ObservedRun(traced)
                return
            from derive.metrics.run import CountingObserver

            counted = CountingObserver(traced)
            yield ObservedRun(counted, counted, monitor)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run, as monitoring systems see it.

    Attributes:
        observer: the observer of the run.
        counted: the totals of its tasks; None without a monitor.
        monitor: the monitor; None without one.
    """

    observer: Observer
    counted: CountingObserver | None = None
    monitor: Monitor | None = None

    def begun(self, run: Run, store: Readable, spark: HasStarted) -> AbstractContextManager[None]:
        """Show the tasks of a run while a block runs."""

        def metrics() -> Part:
            from derive.metrics.run import RunMetrics

            assert self.counted is not None
            return RunMetrics(run, store, self.counted, spark)

        return shown(self.monitor, metrics)

    def troubled(self, reason: str) -> AbstractContextManager[None]:
        """Report, while a block runs, that the run cannot work for a reason."""
        return nullcontext() if self.monitor is None else self.monitor.troubled(reason)


class Part(Protocol):
    """The main part of a process, as its monitor shows it."""

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""

    def readiness(self) -> Readiness:
        """Return whether the process is ready."""


@contextmanager
def shown(monitor: Monitor | None, part: Callable[[], Part]) -> Iterator[None]:
    """Show the main part of a process in the block; without a monitor, `part` is not called."""
    if monitor is None:
        yield
        return
    main = part()
    monitor.add(main.samples)
    monitor.begin(main.readiness)
    try:
        yield
    finally:
        monitor.end()


@contextmanager
def _tracing(observer: Observer, *, has_traces: bool) -> Iterator[Observer]:
    if not has_traces:
        yield observer
        return
    from derive.errors import FlowError

    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise FlowError(
            "--traces needs the libraries of OpenTelemetry, which are not installed",
            hint="install the extra, in a copy of the repository: pip install '.[otel]'",
        )
    from derive.metrics.traces import TracingObserver

    traced = TracingObserver(observer)
    try:
        yield traced
    finally:
        traced.close()


def monitoring_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command, which gets them as `monitoring`.

    Args:
        name: name of the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def monitored(*, metrics: str | None, metrics_hosts: tuple[str, ...], **options: Any) -> None:
            command(monitoring=_monitoring(name, metrics, metrics_hosts), **options)

        host = click.option(
            "--metrics-host",
            "metrics_hosts",
            multiple=True,
            metavar="NAME",
            help="Another host name under which --metrics is reached; may be repeated.",
        )
        address = click.option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus, /live and /ready at this address; the host is 127.0.0.1 by default.",
        )
        return address(host(monitored))

    return decorate


def _monitoring(name: str, metrics: str | None, hosts: tuple[str, ...]) -> Monitoring:
    """Return the options of a command.

    Raises:
        UsageError: the address is wrong, or the host names have no address.
    """
    from derive.errors import UsageError

    if metrics is None:
        if hosts:
            raise UsageError("--metrics-host needs an address", hint="such as --metrics 9464")
        return Monitoring(name, None, ())
    host, _, port = metrics.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--metrics takes a port or HOST:PORT, not {metrics}", hint="such as 9464 or 0.0.0.0:9464")
    return Monitoring(name, (host.strip("[]") or _LOOPBACK, int(port)), hosts)
