"""The filter, the first occurrences and the balances with Spark alone, and reduced reads as an aggregation.

    python -m bench.peer_spark acmeBank/first-send transfers.jsonl FOLDER

prints the seconds of the fastest round without Spark's start, and the number of published documents.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer_rounds import rounds_of
from derive.spark.session import ensure_java

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

_TRANSFERS = "id BIGINT, sender STRING, recipient STRING, amount DOUBLE, at STRING"
_REQUEST = ("id", "sender", "recipient", "amount")


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derivation in Spark.

    Attributes:
        columns: columns of the input.
        derived: builds the result from the input.
        form: file format of the output.
        is_stream: whether Structured Streaming derives the result, in one micro-batch.
    """

    columns: str
    derived: Callable[[DataFrame], DataFrame]
    form: str = "parquet"
    is_stream: bool = False


def last_large_send(transfers: DataFrame) -> DataFrame:
    """Return the large transfers."""
    return transfers.filter(transfers.amount > 100).select(*_REQUEST)


def first_send(transfers: DataFrame) -> DataFrame:
    """Return one transfer of each pair; Spark does not guarantee that it is the first one."""
    return transfers.dropDuplicates(["sender", "recipient"]).select(*_REQUEST)


def spending(facts: DataFrame) -> DataFrame:
    """Return the spending of each account."""
    from pyspark.sql import functions as F

    return facts.groupBy("account").agg(F.sum("transfers").alias("transfers"), F.sum("spent").alias("spent"))


def balance(transfers: DataFrame) -> DataFrame:
    """Return each transfer with the sum of its sender's transfers so far as its amount; Spark may reorder transfers."""
    return transfers.groupBy("sender").applyInPandasWithState(_added, _TRANSFERS, "total DOUBLE", "append", "NoTimeout")


def _added(_: tuple[str], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = state.get[0] if state.exists else 0.0
    for part in parts:
        sums = total + part["amount"].cumsum()
        total = float(sums.iloc[-1])
        yield part.assign(amount=sums)
    state.update((total,))


DERIVATIONS = {
    "acmeBank/last-large-send": Derivation(_TRANSFERS, last_large_send),
    "acmeBank/first-send": Derivation(_TRANSFERS, first_send),
    "bench/balance": Derivation(_TRANSFERS, balance, is_stream=True),
    "bench/spending": Derivation("account STRING, transfers BIGINT, spent DOUBLE", spending, "json"),
}


@cache
def session() -> SparkSession:
    """Return Spark with default settings, on all cores of this machine."""
    from pyspark.sql import SparkSession

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return SparkSession.builder.master("local[*]").config(map=dict(quiet)).getOrCreate()


def derive(task: str, lines: Path, folder: Path) -> tuple[float, int]:
    """Run a derivation from JSON Lines to files; return its seconds, and the number of documents."""
    spark = session()
    derivation = DERIVATIONS[task]
    output = folder / "output"
    run = _stream if derivation.is_stream else _write
    source = folder / "input"  # a stream reads folders
    source.mkdir()
    os.link(lines, source / lines.name)
    begun = time.perf_counter()
    run(spark, derivation, source, output)
    seconds = time.perf_counter() - begun
    return seconds, sum(_documents(file) for file in output.glob("part-*"))


def _write(spark: SparkSession, derivation: Derivation, source: Path, output: Path) -> None:
    rows = spark.read.schema(derivation.columns).json(str(source))
    derivation.derived(rows).write.format(derivation.form).save(str(output))


def _stream(spark: SparkSession, derivation: Derivation, source: Path, output: Path) -> None:
    """Derive in one micro-batch, with a state store for each core: the default of 200 takes much longer."""
    spark.conf.set("spark.sql.shuffle.partitions", str(os.cpu_count()))
    rows = derivation.derived(spark.readStream.schema(derivation.columns).json(str(source)))
    writer = rows.writeStream.format(derivation.form).outputMode("append").trigger(availableNow=True)
    writer.option("checkpointLocation", str(output.with_name("checkpoint"))).start(str(output)).awaitTermination()


def _documents(file: Path) -> int:
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        return int(pq.read_metadata(file).num_rows)
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


if __name__ == "__main__":
    rounds_of(derive, DERIVATIONS)
