"""What test_storage_machine.py runs in processes that it kills: one step of work on a data folder."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from derive import failpoint
from derive.protocol.specs import CollectionSpec
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.store import Store


def crash(root: Path, wall: int, spec: CollectionSpec, point: str, step: str, argument: Any) -> None:
    """Do a step of work, unless this process is killed on the way."""
    os.environ["FLOW_FAILPOINT"] = point
    importlib.reload(failpoint)
    work(Store(root, wall=lambda: wall, durable=False), spec, step, argument)


def work(store: Store, spec: CollectionSpec, step: str, argument: Any) -> None:
    """One step: `ingest` documents, `merge` small segments, or `forget` history below a clock."""
    if step == "ingest":
        Ingestion(store, spec).load("test", enumerate(argument, start=1))
    elif step == "merge":
        compact(store, spec, grace=0)
    else:
        compact(store, spec, since=argument, grace=0)
