"""Digests of what is published, for comparing two commits: a refactoring changes none of them.

    PYTHONPATH=$PWD:$PWD/tests/engine .venv/bin/python tests/published_digests.py

prints a line for each collection of both examples, for each random catalog of the laws, and for each collection of the
data folders of older metadata formats after work on them has gone on. In a checkout of another commit, with its folders
as `PYTHONPATH`, a copy of this script prints that commit's lines. What is stored is read without the code under test:
from Parquet files, which `metadata.db` lists.
"""

from __future__ import annotations

import argparse
import hashlib
import runpy
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pyarrow.parquet as pq
from conftest import World, write_catalog
from format_history import FORMATS, after, documents
from format_history import write_catalog as write_format_catalog
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_catalogs import SOURCE, catalogs, histories

from derive.catalog import load

Documents: TypeAlias = list[dict[str, Any]]
Update: TypeAlias = tuple[int, int, bytes, int, str, tuple[str, ...]]
"""Clock, number among equal clocks and keys, packed key, diff, JSON text, and the folders of the logical partition."""

EXAMPLES = Path(__file__).parents[1] / "examples"
BATCHES_DONE = 3
"""How many batches of documents the data folders of older formats hold."""


def main() -> None:
    """Print all digests, or those of the parts that are named."""
    parts = {"acmebank": acmebank, "flights": flights, "catalogs": random_catalogs, "formats": formats}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--catalogs", type=int, default=100, help="how many random catalogs (default: %(default)s)")
    options = parser.parse_args()
    for name in options.parts or parts:
        with tempfile.TemporaryDirectory() as folder:
            for line, digest in parts[name](Path(folder), options):
                print(f"{line} {digest}", flush=True)


def acmebank(folder: Path, _: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The collections of AcmeBank, in one process: windows close, and money is spent as soon as it has arrived."""
    transfers = runpy.run_path(str(EXAMPLES / "acmebank" / "generate.py"))["transfers"]
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    dense = transfers(2000, 40, seed=7, start=begin, every=timedelta(milliseconds=50))
    sparse = transfers(1000, 40, seed=8, start=begin + timedelta(hours=1), every=timedelta(minutes=11))
    world = World(folder / "data", load(EXAMPLES / "acmebank" / "flow.yaml"))
    world.ingest("acmeBank/transfers", [*dense, *({**each, "id": each["id"] + 2000} for each in sparse)])
    world.step(shards=3)
    world.store.close()
    yield from digests_of("acmebank", world.root, world.catalog.collections)


def flights(folder: Path, _: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The collections of flights, on Spark, all by `flowctl`."""
    source = EXAMPLES / "flights" / "flow.yaml"
    script = runpy.run_path(str(EXAMPLES / "flights" / "load.py"))
    for name, clock in (("weather", "/hour"), ("flights", "/scheduled")):
        file = folder / f"{name}.jsonl"
        file.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in script[name](script["data_folder"](), 10)))
        flowctl(source, folder, "ingest", f"--collection=flights/{name}", f"--clock={clock}", str(file))
    flowctl(source, folder, "run", "--until-idle", "--shards=2")
    yield from digests_of("flights", folder / "data", load(source).collections)


def flowctl(source: Path, folder: Path, command: str, *arguments: str) -> None:
    """Run a command on the data folder in a folder."""
    program = [sys.executable, "-c", "from derive.cli.main import main; main()", command]
    where = [f"--source={source}", f"--data={folder / 'data'}"]
    subprocess.run([*program, *where, *arguments], check=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def random_catalogs(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Random catalogs, each told by the digest of what was drawn, with one digest of all its collections."""
    for number, (text, history) in enumerate(drawn(options.catalogs)):
        below = folder / str(number)
        below.mkdir()
        world = World(below / "data", load(write_catalog(below, text)))
        world.ingest(SOURCE, history)
        world.step(shards=2)
        world.store.close()
        found = [digest for _, digest in digests_of("", world.root, world.catalog.collections)]
        yield f"catalog {number} {digest_of([text, history])[:12]}", digest_of(found)


def drawn(count: int) -> list[tuple[str, Documents]]:
    """The same catalogs and histories each time, as long as the strategies are the same.

    All are drawn before any is run, so what is drawn does not depend on what is found.
    """
    found: list[tuple[str, Documents]] = []

    @seed(11)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(catalogs(), histories())
    def draw(text: str, history: Documents) -> None:
        found.append((text, history))

    draw()
    return found


def formats(folder: Path, _: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Data folders of older metadata formats, upgraded and then run on as more documents arrive."""
    for archive in sorted(FORMATS.glob("*.tar.xz")):
        name = archive.name.removesuffix(".tar.xz")
        below = folder / name
        below.mkdir()
        with tarfile.open(archive) as packed:
            packed.extractall(below, filter="data")
        world = World(below / "data", load(write_format_catalog(below)), wall=after(BATCHES_DONE - 1))
        world.step()
        for batch in (BATCHES_DONE, BATCHES_DONE + 1):
            world.wall = after(batch)
            world.ingest("u/source", documents(batch))
            world.step()
        world.store.close()
        yield from digests_of(f"format {name}", world.root, world.catalog.collections)


def digests_of(what: str, root: Path, collections: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A digest of all updates of each collection of a data folder."""
    db = sqlite3.connect(f"file:{root / 'metadata.db'}?mode=ro", uri=True)
    for name in sorted(collections):
        updates: list[Update] = []
        for (path,) in db.execute("SELECT path FROM segment WHERE collection = ?", (name,)):
            updates += updates_of(root, path)
        yield f"{what} {name}", digest_of(sorted(updates))
    db.close()


def updates_of(root: Path, path: str) -> list[Update]:
    """The updates of a segment, in the order in which they are stored."""
    partition = tuple(part for part in Path(path).parts if "=" in part)
    rows = pq.ParquetFile(root / path).read().to_pylist()
    updates = [(row["clock"], row["seq"], row["key"], row["diff"], row["doc"], partition) for row in rows]
    assert all(before[:3] < after[:3] for before, after in pairwise(updates)), f"{path} is not sorted"
    return updates


def digest_of(values: Iterable[object]) -> str:
    """The digest of values whose `repr` tells them apart."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(repr(value).encode() + b"\n")
    return digest.hexdigest()


if __name__ == "__main__":
    main()
