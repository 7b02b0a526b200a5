"""The text format of Prometheus (version 0.0.4), which all common monitoring systems read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from derive.instruments import Distribution, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(samples: Iterable[Sample]) -> str:
    r"""Return samples as text: each metric once, with all its samples.

    >>> lag = Metric("lag_seconds", "gauge", "Lag.", ("task",))
    >>> print(text_of([Sample(lag, 1.5, ('a"b',)), Sample(lag, 2, ("c",))]), end="")
    # HELP lag_seconds Lag.
    # TYPE lag_seconds gauge
    lag_seconds{task="a\"b"} 1.5
    lag_seconds{task="c"} 2
    """
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    return "".join(line + "\n" for metric, several in by_metric.items() for line in _lines(metric, several))


def _lines(metric: Metric, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in samples:
        labels = list(zip(metric.labels, sample.labels, strict=True))
        if isinstance(sample.value, Distribution):
            yield from _histogram(metric.name, labels, sample.value)
        else:
            yield f"{metric.name}{_labels(labels)} {_number(sample.value)}"


def _histogram(name: str, labels: list[tuple[str, str]], value: Distribution) -> Iterator[str]:
    count = 0
    for bound, count in value.cumulative.items():
        yield f"{name}_bucket{_labels([*labels, ('le', _number(bound))])} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {count}"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    pairs = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    """Return a number as text; whole numbers have no fraction.

    >>> _number(3.0), _number(0.25), _number(float("inf"))
    ('3', '0.25', '+Inf')
    """
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
