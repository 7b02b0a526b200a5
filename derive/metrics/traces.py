"""Traces: a span for each transaction, sent over OTLP by the libraries of OpenTelemetry.

The engine measures its phases anyway, so spans are made after the commit, with the measured times. Only this module
imports OpenTelemetry, which the extra `otel` installs. Its usual environment variables name the endpoint.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from derive.engine.run import Observer
from derive.engine.transactor import Committed
from derive.errors import FlowError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


class TracingObserver:
    """An observer that records a span for each transaction with documents, and passes the events on.

    Args:
        observer: receives the events.
        exporter: sends spans; None for OTLP over HTTP, to the endpoint of the environment.
    """

    def __init__(self, observer: Observer, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        resource = Resource({SERVICE_NAME: "flowctl"}).merge(Resource.create())
        self._observer = observer
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("derive")
        self._begun: dict[str, int] = {}

    def working(self, task: str, documents: int) -> None:
        """Note the start of a transaction, and pass the event on."""
        if not documents:
            self._begun[task] = time.time_ns()
        self._observer.working(task, documents)

    def committed(self, task: str, done: Committed) -> None:
        """Record the spans of a transaction and of its phases."""
        self._begun.pop(task, None)
        if done.documents_in:
            self._record(task, done)
        self._observer.committed(task, done)

    def _record(self, task: str, done: Committed) -> None:
        from opentelemetry.trace import set_span_in_context

        phases = done.phases._asdict()
        at = time.time_ns() - int(sum(phases.values()) * 1e9)
        span = self._span(task, at, done)
        inside = set_span_in_context(span)
        for name, seconds in phases.items():
            part = self._tracer.start_span(name, context=inside, start_time=at)
            at += int(seconds * 1e9)
            part.end(at)
        span.end(at)

    def failed(self, task: str, error: FlowError) -> None:
        """Record the span of a transaction that has failed, without the message, which may quote documents."""
        from opentelemetry.trace import Status, StatusCode

        now = time.time_ns()
        span = self._span(task, self._begun.pop(task, now), None)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        span.end(now)
        self._observer.failed(task, error)

    def _span(self, task: str, at: int, done: Committed | None) -> Any:
        attributes: dict[str, str | int] = {"flow.task": task}
        if done is not None:
            attributes |= {
                "flow.documents_in": done.documents_in,
                "flow.documents_out": done.documents_out,
                "flow.bytes_in": done.bytes_in,
                "flow.bytes_out": done.bytes_out,
            }
        return self._tracer.start_span("transaction", start_time=at, attributes=attributes)

    def close(self) -> None:
        """Send the remaining spans; an endpoint that does not answer delays the end by seconds at most."""
        self._provider.shutdown()
