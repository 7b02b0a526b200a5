"""Jobs: what goes wrong on a worker is told alike whether a job has one stage, which is no query, or several."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from derive.errors import FlowError, InternalError, LostError, OutdatedError
from derive.shard.progress import Message
from derive.shard.worker import Stage, Stages, message_batch
from derive.spark.executor import SparkExecutor

pytestmark = pytest.mark.spark


def counts() -> Stage:
    """Says the number of its task in two messages; workers are sent the function itself, as they have no tests."""

    def stage(number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        yield message_batch([Message(documents_in=number), Message(documents_out=number)])

    return stage


def raises(error: Exception) -> Stage:
    """Raises."""

    def stage(number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        raise error

    return stage


def test_job_returns_messages_of_all_tasks(spark: SparkExecutor) -> None:
    messages = spark._run(spark.session, Stages(3, 1, (counts(),)))

    assert sorted(message.documents_in for message in messages) == [0, 0, 0, 0, 1, 2]
    assert sorted(message.documents_out for message in messages) == [0, 0, 0, 0, 1, 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("unforeseen"), InternalError, "KeyError: 'unforeseen'"),
        (OutdatedError("a newer attempt has begun"), LostError, "a newer attempt has begun"),
    ],
)
def test_error_of_a_worker_is_reported(
    error: Exception, kind: type[FlowError], message: str, count: int, spark: SparkExecutor
) -> None:
    with pytest.raises(kind, match=f"the Spark job of 'x' failed: .*{message}"), spark.explained("of 'x'"):
        spark._run(spark.session, Stages(2, 1, (raises(error),) * count))
