"""The catalog and the data folder that pages show."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derive.cli.collections import collection_row
from derive.cli.options import open_store, stored_folder
from derive.errors import FlowError, UsageError
from derive.planning.status import running_catalog_of, task_row
from derive.position import is_remote
from derive.protocol.collection import quarantine_name
from derive.protocol.specs import CatalogSpec
from derive.sql.maintenance.recording import Record, read_record
from derive.storage.metadata.identity import DATABASE
from derive.storage.metadata.place import FILE as PLACE
from derive.storage.store import Store


@dataclass(frozen=True, slots=True)
class Task:
    """A task at one time.

    Attributes:
        row: the row of `flowctl status -o json`.
        error: the error that stopped the task; None for none.
    """

    row: Mapping[str, Any]
    error: FlowError | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of all tasks at one time.

    Attributes:
        version: version of the data folder, in the form of `Folder.version`.
        catalog: the catalog of a run with the present shadows.
        outdated: the error of shadows that are older than the catalog; None for none.
        tasks: tasks by name, in the order of the catalog.
        documents: number of stored documents by collection.
        present: present time of the data folder, in microseconds.
        instances: the record of a SQL server; None without one.
        runs: number of processes that run tasks.
    """

    version: str
    catalog: CatalogSpec
    outdated: UsageError | None
    tasks: Mapping[str, Task]
    documents: Mapping[str, int]
    present: int
    instances: Record | None
    runs: int


@dataclass(frozen=True, slots=True)
class _Loaded:
    catalog: CatalogSpec
    stamps: Mapping[str, tuple[int, int] | None]


class Folder:
    """A catalog and its data folder.

    Args:
        source: root file of the catalog.
        data: the data folder; None for `.flow` beside the catalog.

    Attributes:
        source: root file of the catalog.
        path: the data folder.
        has_catalog: false for a data folder without a catalog.

    Raises:
        UsageError: `data` names no data folder.
        StorageError: the data folder cannot be read.
    """

    def __init__(self, source: Path, data: Path | None) -> None:
        self.source = source
        self.has_catalog = data is None or source.exists()
        self.path = stored_folder(source, data)
        self._turn = threading.Lock()
        self._overview_turn = threading.Lock()
        self._token = secrets.token_hex(4)
        self._openings = 0
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._loaded: _Loaded | None = None
        self._overview: Overview | None = None
        self._overview_catalog: CatalogSpec | None = None
        self._overview_facts: object = None

    def require_catalog(self) -> None:
        """Raise the error of a missing catalog; a page shows the errors of a wrong one.

        Raises:
            CatalogError: the root file is missing.
        """
        if self.has_catalog and not self.source.exists():
            _load(self.source)

    def catalog(self) -> CatalogSpec:
        """Return the catalog; its files are read again after an edit.

        Raises:
            CatalogError: the catalog is wrong.
        """
        if not self.has_catalog:
            return CatalogSpec(str(self.source), {}, {}, (), {})
        with self._turn:
            if self._loaded is None or _stamps(self._loaded.stamps) != self._loaded.stamps:
                self._loaded = None
                self._loaded = _load(self.source)
            return self._loaded.catalog

    def store(self) -> Store:
        """Return the open data folder, which all threads share.

        Raises:
            StorageError: the data folder cannot be used.
        """
        with self._turn:
            file = _inode(self.path / DATABASE) or _inode(self.path / PLACE)
            if self._store is None or file is None or file != self._file:
                # The store of a missing folder never gets the folder, and the store of a replaced folder keeps the old
                # one. Other threads may still use it, so it is not closed, and its inode is not used again.
                self._store = open_store(self.path, reading=True)
                self._file = file
                self._openings += 1
            return self._store

    def version(self) -> str:
        """Return a text that differs after each commit, also from the texts of other processes."""
        store = self.store()
        return f"{self._token}-{self._openings}-{store.changes.version()}"

    def facts(self) -> object:
        """Return a value that differs if pages show more than other times: documents, transactions, errors."""
        catalog, store = self.catalog(), self.store()
        tasks = [(state.name, state.transactions, state.shards, state.error) for state in store.tasks()]
        documents = store.history.documents()
        aside = [name for name in catalog.derivations if quarantine_name(name) in documents]
        quarantines = [sorted(store.quarantined(name).items()) for name in aside]
        record = read_record(self.path, store.serving)
        instances = [(one["name"], one["reason"], len(one["dataflows"])) for one in record.instances] if record else []
        runners = store.task_capabilities.runners(catalog.tasks)
        tables = [table.name for table in store.tables.all()]
        return catalog, documents, tables, tasks, quarantines, instances, runners

    def overview(self, *, fresh: bool = True) -> Overview:
        """Return the state of all tasks; requests between two commits, and within a second, share one.

        Args:
            fresh: false to accept an overview with the present facts, whose times, lags and rates are old.
        """
        with self._overview_turn:
            version, catalog, store = self.version(), self.catalog(), self.store()
            last = self._overview
            if last is not None and self._overview_catalog is catalog:
                age = store.timeline.present() - last.present
                if (last.version == version and age <= _FRESH) or (not fresh and self.facts() == self._overview_facts):
                    return last
            facts = self.facts()  # before the overview, so that a commit meanwhile makes them differ
            last = self._overview = self._describe(version, catalog, store)
            self._overview_catalog, self._overview_facts = catalog, facts
            return last

    def _describe(self, version: str, written: CatalogSpec, store: Store) -> Overview:
        shadows, bindings = store.shadows.members(), store.shadows.bindings()
        catalog, outdated = running_catalog_of(store, shadows, bindings, written)
        assert catalog is not None
        known = {name: store.collection(name) for name in catalog.collections}
        return Overview(
            version,
            catalog,
            outdated,
            {name: Task(*task_row(store, spec)) for name, spec in catalog.tasks.items()},
            {name: collection.documents if collection else 0 for name, collection in known.items()},
            store.timeline.present(),
            read_record(self.path, store.serving),
            len(store.task_capabilities.runners(catalog.tasks)),
        )

    def collections(self) -> list[dict[str, Any]]:
        """Return a row for each collection and table, as `flowctl collections list` does, with its `kind`."""
        from derive.protocol.collection import is_internal

        catalog, store = self.catalog(), self.store()
        kinds = {name: "derived" if name in catalog.derivations else "ingested" for name in catalog.collections}
        kinds |= self.sql_relations()
        keys = {name: spec.key for name, spec in catalog.collections.items()}
        keys |= {table.name: table.key for table in store.tables.all() if not is_internal(table.name)}
        rows = [collection_row(store, catalog, name, key) for name, key in keys.items()]
        return [{**row, "kind": kinds.get(row["collection"], "table")} for row in rows]

    def sql_relations(self) -> dict[str, str]:
        """Return the kinds of the tables, sources and views of SQL, by the names that tables have in Storage."""
        items = self.store().sql_catalog.read()[1]
        return {
            f"sql/{item.schema}/{item.name}": item.kind
            for item in items
            if item.kind in _RELATIONS and not item.schema.startswith("pg_temp")
        }


_RELATIONS = frozenset({"table", "source", "view", "materialized view"})
_FRESH = 1_000_000
"""Age in microseconds of an overview that another request may get."""


def _load(source: Path) -> _Loaded:
    from derive.catalog import load_without_tests
    from derive.catalog.loading import Resources

    resources = Resources()
    catalog = load_without_tests(source, resources)
    return _Loaded(catalog, _stamps({url: None for url in resources.asked if not is_remote(url)}))


def _stamps(files: Mapping[str, object]) -> dict[str, tuple[int, int] | None]:
    """Return the time of the last change and the size of each file; None for a missing file."""
    return {file: _stamp(Path(file)) for file in files}


def _inode(file: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if it is missing."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
