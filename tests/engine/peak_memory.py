"""Run by a test in a process of its own: prints by how many MiB its memory grows from a small tick to a large one."""

from __future__ import annotations

import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.materialize.stages import AnyPlan
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

SECOND = 1_000_000
MEMORY = 8 << 20
CATALOG = """
collections:
  t/source:
    schema: &schema {type: object, required: [id, text], properties: {id: {type: integer}, text: {type: string}}}
    key: [/id]
  t/derived:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: pick, source: t/source, shuffle: SHUFFLE, lambda: "SELECT $id, $text;"}
"""
LOOP = """
        - {name: again, source: t/derived, shuffle: {key: [/id]}, lambda: "SELECT -$id AS id, $text WHERE $id > 0;"}
"""


class LittleMemory(InProcessExecutor):
    """Gives tasks little memory."""

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Carry out a plan."""
        assert isinstance(plan, Plan)
        return super().execute(replace(plan, memory=MEMORY), progress)


def peak(text: str, count: int) -> int:
    """The greatest size of this process, KiB, by the time that it has derived so many documents in one tick."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.yaml").write_text(text)
        catalog = load(folder / "flow.yaml")
        wall = 1_700_000_000 * SECOND
        store = Store(folder / "data", wall=lambda: wall, durable=False)
        documents = ((n, {"id": n, "text": f"{n:0200}"}) for n in range(1, count + 1))
        Ingestion(store, catalog.collections["t/source"]).load("test", documents)
        wall += 60 * SECOND
        run = open_run(catalog, store, LittleMemory(), shards=1)
        run.step()
        assert [task.error for task in run.tasks.values()] == [None]
        run.close()
        store.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def ingested(count: int) -> int:
    """The greatest size of this process, KiB, by the time that it has ingested so many documents of 200 kB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.yaml").write_text(CATALOG.replace("SHUFFLE", "any"))
        store = Store(folder / "data", durable=False)
        lines = ((n, b'{"id":%d,"text":"%s"}' % (n, b"x" * 200_000)) for n in range(1, count + 1))
        Ingestion(store, load(folder / "flow.yaml").collections["t/source"]).load("test", lines)
        store.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure the shape that is named."""
    shape = sys.argv[1]
    if shape == "ingest":
        before = ingested(10)
        sys.stdout.write(str((ingested(1_000) - before) // 1024))
        return
    text = CATALOG.replace("SHUFFLE", "any" if shape == "sliced" else "{key: [/id]}") + LOOP * (shape == "loop")
    before = peak(text, 10_000)
    sys.stdout.write(str((peak(text, 60_000) - before) // 1024))


main()
