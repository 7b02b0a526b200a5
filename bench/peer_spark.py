"""The filter and the first occurrences with Spark alone, and reduced reads as an aggregation.

    python -m bench.peer_spark acmeBank/first-send transfers.jsonl FOLDER

prints the seconds of the last round without Spark's start, and the number of published documents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer_rounds import rounds_of
from derive.spark.session import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRANSFERS = "id BIGINT, sender STRING, recipient STRING, amount DOUBLE, at STRING"
_REQUEST = ("id", "sender", "recipient", "amount")


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derivation in Spark.

    Attributes:
        columns: columns of the input.
        derived: builds the result from the input.
        form: file format of the output.
    """

    columns: str
    derived: Callable[[DataFrame], DataFrame]
    form: str = "parquet"


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


DERIVATIONS = {
    "acmeBank/last-large-send": Derivation(_TRANSFERS, last_large_send),
    "acmeBank/first-send": Derivation(_TRANSFERS, first_send),
    "bench/spending": Derivation("account STRING, transfers BIGINT, spent DOUBLE", spending, "json"),
}


@cache
def session() -> SparkSession:
    """Return Spark with default settings, on all cores of this machine."""
    from pyspark.sql import SparkSession

    ensure_java()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return SparkSession.builder.master("local[*]").config(map=dict(quiet)).getOrCreate()


def derive(task: str, lines: Path, folder: Path) -> tuple[float, int]:
    """Run a derivation from JSON Lines to files; return its seconds, and the number of documents."""
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
