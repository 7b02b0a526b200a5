"""The filter and the first occurrences as Spark does them by itself, and what is read reduced as an aggregation.

    python -m bench.peer_spark acmeBank/first-send transfers.jsonl FOLDER

prints how many seconds the last round took, Spark's start not counted, and how many documents it published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer_rounds import rounds_of
from derive.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRANSFERS = "id BIGINT, sender STRING, recipient STRING, amount DOUBLE, at STRING"
_REQUEST = ("id", "sender", "recipient", "amount")


@dataclass(frozen=True, slots=True)
class Derivation:
    """What Spark is to do.

    Attributes:
        columns: those of its input.
        derived: makes the result of the input.
        form: that of its output.
    """

    columns: str
    derived: Callable[[DataFrame], DataFrame]
    form: str = "parquet"


def last_large_send(transfers: DataFrame) -> DataFrame:
    """A filter."""
    return transfers.filter(transfers.amount > 100).select(*_REQUEST)


def first_send(transfers: DataFrame) -> DataFrame:
    """One transfer of each pair, of which Spark does not say that it is the first."""
    return transfers.dropDuplicates(["sender", "recipient"]).select(*_REQUEST)


def spending(facts: DataFrame) -> DataFrame:
    """What each account has spent."""
    from pyspark.sql import functions as F

    return facts.groupBy("account").agg(F.sum("transfers").alias("transfers"), F.sum("spent").alias("spent"))


DERIVATIONS = {
    "acmeBank/last-large-send": Derivation(_TRANSFERS, last_large_send),
    "acmeBank/first-send": Derivation(_TRANSFERS, first_send),
    "bench/spending": Derivation("account STRING, transfers BIGINT, spent DOUBLE", spending, "json"),
}


@cache
def session() -> SparkSession:
    """Spark as it comes, on all cores of this machine."""
    from pyspark.sql import SparkSession

    ensure_java()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return SparkSession.builder.master("local[*]").config(map=dict(quiet)).getOrCreate()


def derive(task: str, lines: Path, folder: Path) -> tuple[float, int]:
    """Seconds that it takes from JSON Lines to files, and how many documents these hold."""
    spark = session()
    derivation = DERIVATIONS[task]
    output = folder / "output"
    begun = time.perf_counter()
    rows = spark.read.schema(derivation.columns).json(str(lines))
    derivation.derived(rows).write.format(derivation.form).save(str(output))
    seconds = time.perf_counter() - begun
    return seconds, sum(_documents(file) for file in output.glob("part-*"))


def _documents(file: Path) -> int:
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        return int(pq.read_metadata(file).num_rows)
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


if __name__ == "__main__":
    rounds_of(derive, DERIVATIONS)
