"""Changes of a task's state: a start without output, state and progress; and the split of its shards.

A reset keeps the sources. A split doubles the shards of a task. A shard owns a range of hashes, and each of its two
successors owns one half of the range. Both successors get a copy of the state of the shard. State that a connector
keeps by shuffle key is divided; a successor never reads other entries of keys in the other half. No documents are read
again, so a split costs a copy of the state databases. The state of a materialization stays in the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

from derive.document.key import packed_key
from derive.document.pointer import JSON
from derive.errors import FencedError, TaskError, UsageError
from derive.failpoint import reach
from derive.materialize.checkpoint import ShardCheckpoint
from derive.materialize.restarts import ResetMarker, clocks_of, next_reset, require_known_facts
from derive.plural import counted
from derive.protocol.derive import DividesState
from derive.protocol.specs import CatalogSpec
from derive.shard.owners import owners_of_keys
from derive.shard.plan import Attempt
from derive.shard.state import copy_state, fold, publish_epoch, remove_shards, remove_state, shard_folder, task_folder
from derive.shard.state_objects import Pack, divided_chains
from derive.storage.capability.table import TaskCapability
from derive.storage.location import blobs_of
from derive.storage.metadata.chain import Chain
from derive.storage.metadata.descriptions import Divided, MaterializationRecord, ResetTask, ShardData, TaskState
from derive.storage.metadata.undo import ReadLoadError
from derive.storage.roles import Maintainable, Runnable
from derive.storage.task_log import TaskLog
from derive.time import tick_begin

if TYPE_CHECKING:
    import apsw


def readers_of(catalog: CatalogSpec, store: Maintainable, names: Sequence[str]) -> list[str]:
    """Return tasks that have run and read any of `names`, directly or indirectly, in catalog order."""
    return [name for name in _reached(catalog, names) if store.task(name) is not None]


def _reached(catalog: CatalogSpec, names: Sequence[str]) -> list[str]:
    """Return tasks that read any of `names`, directly or indirectly, in catalog order."""
    reached = set(names)
    grown = True
    while grown:
        before = len(reached)
        reached |= {name for name, spec in catalog.tasks.items() if not reached.isdisjoint(spec.sources)}
        grown = len(reached) > before
    return [name for name in catalog.tasks if name in reached and name not in names]


Removing: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a task, the number of its files that are removed, and the number of all files to remove."""


def _unwatched(task: str, done: int, total: int) -> None:
    """Ignore the progress of a removal."""


def reset(
    catalog: CatalogSpec,
    store: Maintainable,
    names: Sequence[str],
    *,
    cascade: bool = False,
    progress: Removing = _unwatched,
) -> list[str]:
    """Start tasks over, all of them or none.

    The reset is done with its metadata commit. Files are removed after the commit; the next run of the task removes
    files that are left by a crash. Running transactions of the tasks are fenced.

    Args:
        catalog: the catalog with the tasks.
        store: the data folder.
        names: names of tasks.
        cascade: whether to reset the reading tasks, too; of a materialization, only the reading bindings.
        progress: receives the progress of the removal of files.

    Returns:
        Names of the reset tasks.

    Raises:
        UsageError: a name is not the name of a task; or a task that would not be reset, such as a task of another
            catalog, reads a reset task.
        FencedError: a run or a reset of a reading task has begun meanwhile; nothing was reset.
    """
    for name in names:
        catalog.find_task(name)
    while True:
        reached = _reached(catalog, names)
        epochs = {**dict.fromkeys(reached, 0), **store.task_capabilities.epochs(reached)}  # before their states
        readers = [name for name in reached if store.task(name) is not None]
        if readers and not cascade:
            raise _read(readers, names)
        idle = {name: epoch for name, epoch in epochs.items() if name not in readers}
        try:
            _start_over(catalog, store, names, readers, idle=idle, progress=progress)
        except FencedError:
            if all(store.task(name) is None for name in idle):
                raise
            continue  # one of them runs for the first time, and has perhaps read the old documents
        return [*names, *readers]


def _read(readers: Sequence[str], names: Sequence[str]) -> UsageError:
    return UsageError(
        f"{', '.join(readers)} {'reads' if len(readers) == 1 else 'read'} {', '.join(names)}, and would keep the"
        " results of the old documents",
        hint="add --cascade to reset these too",
    )


def undo(
    catalog: CatalogSpec, store: Maintainable, collection: str, load_id: str, *, reset_readers: bool = False
) -> list[str]:
    """Undo a load and reset the tasks that have read the load, in one commit.

    Args:
        catalog: the catalog with the readers.
        store: the data folder.
        collection: name of the collection.
        load_id: identifier of the load.
        reset_readers: whether to reset all tasks that read the collection, directly or not, if one has read the load.

    Returns:
        Names of the reset tasks.

    Raises:
        ReadLoadError: the load has readers that are not reset.
        StorageError: compaction has merged the load with other documents.
        UsageError: the load does not exist, or a task of another catalog has read the collection.
    """
    try:
        store.reset([], undone=(collection, load_id))
    except ReadLoadError:
        if not reset_readers:
            raise
    else:
        return []
    readers = readers_of(catalog, store, [collection])
    _start_over(catalog, store, [], readers, (collection, load_id))
    return readers


def _start_over(
    catalog: CatalogSpec,
    store: Maintainable,
    names: Sequence[str],
    readers: Sequence[str],
    undone: tuple[str, str] | None = None,
    *,
    idle: Mapping[str, int] | None = None,
    progress: Removing = _unwatched,
) -> None:
    """Start tasks over, and the inputs of readers that read one of these tasks or the collection of an undone load.

    Raises:
        FencedError: a task in `idle` has another epoch; nothing starts over.
    """
    sources = [*names, *readers, *(undone or ())[:1]]
    _refuse_others(catalog, store, sources)
    shadowed = [shadow.task for shadow in store.shadows.bindings() if shadow.task in (*names, *readers)]
    if shadowed:
        raise UsageError(
            f"a shadow of {', '.join(shadowed)} is being filled, and would not fit rows that start over",
            hint="bring the shadow into force (flowctl swap), or drop it (flowctl shadow drop)",
        )
    parts = {name: keys for name in readers if (keys := _parts(catalog, store, name, sources))}
    ticks = {task.tick for task in catalog.tasks.values()}
    chosen = [*names, *readers]
    materialized = [name for name in chosen if name in catalog.materializations]
    start_over(store, chosen, materialized, parts, ticks, undone, idle=idle, progress=progress)


def start_over(
    store: Maintainable,
    names: Sequence[str],
    materialized: Sequence[str],
    parts: Mapping[str, Sequence[str]] | None = None,
    ticks: Collection[int] = (),
    undone: tuple[str, str] | None = None,
    *,
    idle: Mapping[str, int] | None = None,
    progress: Removing = _unwatched,
) -> None:
    """Delete the output and the progress of tasks, but not of their readers; running transactions are fenced.

    Args:
        store: the data folder.
        names: names of the tasks.
        materialized: names of the materializations among the tasks.
        parts: state keys of the bindings that start over, by task; a task without an entry starts over as a whole.
        ticks: ticks of all tasks, microseconds.
        undone: collection and identifier of a load to undo in the same commit; None for none.
        idle: epochs that other tasks must have at the commit, by name.
        progress: receives the progress of the removal of files.
    """
    parts = parts or {}
    chosen = choose_resets(store, {name: parts.get(name, ()) for name in materialized}, ticks)
    reach("reset.committing")
    complete = [name for name in names if name not in parts]
    done = store.reset(complete, parts, undone, {**chosen.epochs, **(idle or {})}, chosen.restarts)
    reach("reset.committed")
    for name in names:
        with suppress(FencedError):  # a newer run has begun, and removes these files
            keys, is_materialized = parts.get(name, ()), name in materialized
            _clean(store, name, done.get(name), keys, is_materialized=is_materialized, progress=progress)


@dataclass(frozen=True, slots=True)
class ChosenResets:
    """Resets of materializations that are committed together with the loss of their progress.

    Attributes:
        epochs: epochs that the materializations must still have at the commit: otherwise a run or a reset has begun,
            and the progress that the resets record is outdated.
        restarts: JSON of the reset of each materialization, by name.
    """

    epochs: Mapping[str, int]
    restarts: Mapping[str, str]


def choose_resets(
    store: Maintainable, parts: Mapping[str, Sequence[str]], ticks: Collection[int], *, is_swap: bool = False
) -> ChosenResets:
    """Choose the resets of materializations, before the commit that rewinds them.

    Args:
        store: the data folder.
        parts: state keys of the bindings that start over, by materialization; empty for all bindings.
        ticks: ticks of all tasks, microseconds.
        is_swap: whether the reset is that of a swap, so that the bindings replace their rows together.

    Raises:
        TaskError: another machine has files with the facts about a materialization.
    """
    for name in parts:
        require_known_facts(store, name)
    known = store.task_capabilities.epochs(parts)
    epochs = {name: known.get(name, 0) for name in parts}
    restarts = {}
    for name, keys in parts.items():
        last = ResetMarker.from_text(store.adopt_materialization(name).restart)
        state = store.task(name)
        uppers = _uppers(store, state, ticks) if state else {}
        restarts[name] = next_reset(last, state, keys, uppers, is_swap=is_swap).to_text()
    return ChosenResets(epochs, restarts)


def _uppers(store: Maintainable, state: TaskState, ticks: Collection[int]) -> dict[str, int]:
    """Return, for each source of a materialization, a timestamp that its documents do not exceed, also after a reset.

    The frontier of each source reaches its timestamp, for every tick by which the source may be derived.
    """
    present = store.timeline.present()
    reached = tick_begin(present, lcm(*ticks))
    uppers = {}
    for source in {place.source for place in state.places.values()}:
        known = store.collection(source)
        if known is not None:
            uppers[source] = reached if store.task(source) is not None else min(known.sound, present)
    return uppers


def _parts(catalog: CatalogSpec, store: Maintainable, name: str, chosen: Sequence[str]) -> list[str]:
    """Return state keys of a materialization's bindings that read a reset collection; empty if all or none do."""
    spec, state = catalog.materializations.get(name), store.task(name)
    if spec is None or state is None:
        return []
    sources = {item.state_key: item.source for item in spec.inputs}
    sources |= {key: place.source for key, place in state.places.items() if key not in sources}
    keys = sorted(key for key, source in sources.items() if source in chosen)
    return keys if len(keys) < len(sources) else []


def _clean(
    store: Maintainable,
    name: str,
    done: ResetTask | None,
    keys: Sequence[str],
    *,
    is_materialized: bool,
    progress: Removing,
) -> None:
    """Remove the files of a reset task, and log it; if `keys` is given, only these bindings were reset.

    Raises:
        FencedError: a run has begun since the reset.
    """
    if keys:
        what = ", ".join(f"'{key}'" for key in keys)
        TaskLog(store.root, name).write("info", f"{what} starts over with its source; the other bindings continue")
        return
    what = "all rows are stored again" if is_materialized else "its derived documents were removed"
    TaskLog(store.root, name).write("info", f"the task starts over: {what}", reset=True)
    if done is None:
        return  # it has never run
    for folder in {name, done.folder}:
        remove_state(store.root, folder, store.location, done.epoch)
    reach("reset.removed")
    if not is_materialized:
        for collection in (name, *store.internal_collections(name)):
            store.garbage.collect_uncommitted(collection, (name, done.epoch), partial(progress, name))


def _refuse_others(catalog: CatalogSpec, store: Maintainable, names: Sequence[str]) -> None:
    """Require that no derivation of another catalog has processed the collections to be reset."""
    others = []
    for name in sorted(store.task_capabilities.readers(names) - set(catalog.tasks)):
        state = store.task(name)
        if state is not None and state.positions:
            others.append(name)
    if others:
        read = f"{', '.join(others)}, which this catalog does not define, {'read' if len(others) > 1 else 'reads'}"
        raise UsageError(
            f"{read} {', '.join(names)}, and would keep the results of the old documents",
            hint="reset the readers first, with the catalog that defines them. If no catalog defines them, forget them"
            f" without a loss of history: {FORGETTING}",
        )


FORGETTING = "flowctl compact --since 1970-01-01T00:00:00Z"
"""Forgets tasks that are not in the catalog; it deletes no history, because no document is older."""

SPLIT = "split"
"""The purpose with which a task is acquired for a split."""

_MOST_SHARDS = 1024


def split(
    store: Runnable,
    name: str,
    *,
    is_materialized: bool = False,
    connector: DividesState | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Double the shards of a task; a running transaction is fenced, and a watching run continues with the new shards.

    Until the metadata commit the task has its former shards; a split after a crash makes the copies again.

    Args:
        store: the data folder.
        name: name of the task.
        is_materialized: whether it is a materialization.
        connector: the connector of a derivation, if it keeps state by shuffle key.
        progress: called with the number of shards that have their state, and of all shards that get one.

    Returns:
        The new number of shards.

    Raises:
        TaskError: the task has never run, or has the maximum number of shards; or another machine has files with the
            facts about a materialization.
    """
    before = store.task(name)
    if before is None:
        raise TaskError(
            f"'{name}' has never run", hint="choose the number of shards at the first run: flowctl run --shards N"
        )
    if 2 * before.shards > _MOST_SHARDS:
        raise TaskError(f"'{name}' has {counted(before.shards, 'shard')}, and at most {_MOST_SHARDS} are possible")
    if is_materialized:
        require_known_facts(store, name)
    capability, state = store.acquire_task(name, before.shards, () if is_materialized else [name], purpose=SPLIT)
    count = 2 * state.shards
    try:
        if not is_materialized or task_folder(store.root, name).exists():  # the folder says that rows may be here
            publish_epoch(store.root, state.folder, capability.epoch)
            remove_shards(store.root, state.folder, state.shards, capability.epoch)
        if is_materialized:
            tokens = {2 * number + half: token for number, token in state.tokens.items() for half in (0, 1)}
            divided = Divided(count, tokens, kept=_divide_kept(state, store.adopt_materialization(name)))
        else:
            divided = _divide_state(store, state, capability, connector, progress)
        store.note_task(capability, divided)
        reach("split.committed")
        with suppress(FencedError):  # a newer run removes them
            remove_shards(store.root, state.folder, count, capability.epoch)
    finally:
        store.release_task(capability)
    return count


def split_up_to(
    store: Runnable,
    name: str,
    shards: int,
    *,
    is_materialized: bool = False,
    connector: DividesState | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Double the shards of a task until it has `shards`; a second call changes nothing.

    Args:
        store: the data folder.
        name: name of the task.
        shards: desired number of shards.
        is_materialized: whether it is a materialization.
        connector: as for `split`.
        progress: as for `split`.

    Returns:
        The new number of shards.

    Raises:
        TaskError: the task has never run, or doubling its shards never gives this number.
    """
    state = store.task(name)
    count = state.shards if state is not None else split(store, name)  # raises an error: the task has never run
    if shards not in [count << times for times in range(_MOST_SHARDS.bit_length())]:
        raise TaskError(
            f"'{name}' has {counted(count, 'shard')}, and doubling never results in {shards}",
            hint=f"the number of shards can only be doubled: choose {count}, {2 * count}, {4 * count} and so on",
        )
    while count < shards:
        count = split(store, name, is_materialized=is_materialized, connector=connector, progress=progress)
    return count


def _divide_state(
    store: Runnable,
    state: TaskState,
    capability: TaskCapability,
    connector: DividesState | None,
    progress: Callable[[int, int], None],
) -> Divided:
    """Give the state of each shard to both of its successors, and divide it; return the successors' states.

    The successors of a state that travels name the same objects, unless the state is divided.
    """
    root, name, count = store.root, state.folder, 2 * state.shards
    tokens: dict[int, str] = {}
    attempt = Attempt(capability.epoch)
    chains: dict[int, Chain] = {}
    blobs = blobs_of(store.location)
    pack = Pack(blobs, name, attempt.epoch, f"{capability.id}.{SPLIT}")
    progress(0, 2 * len(state.tokens))
    for number, token in state.tokens.items():
        successors = {
            successor: partial(_divide_copy, connector, successor, count) if connector else None
            for successor in (2 * number, 2 * number + 1)
        }
        chain = state.chains.get(number)
        if chain:
            chains |= divided_chains(blobs, chain, successors, pack)
        else:
            database = fold(shard_folder(root, name, number, state.shards), attempt=attempt, committed=token)
            for successor, divide in successors.items():
                copy_state(database, shard_folder(root, name, successor, count), attempt=attempt, divide=divide)
                reach("split.copied")
                progress(len(tokens) + successor % 2 + 1, 2 * len(state.tokens))
        tokens |= dict.fromkeys(successors, token)
        progress(len(tokens), 2 * len(state.tokens))
    pack.store()
    return Divided(count, tokens, chains)


def _divide_copy(connector: DividesState, shard: int, shards: int, database: apsw.Connection) -> None:
    """Delete the state of keys that a shard does not own from its copy of a database."""

    def is_owned(key: Sequence[JSON]) -> bool:
        return int(owners_of_keys([packed_key(key)], shards)[0]) == shard

    connector.divide_state(database, is_owned)


def _divide_kept(state: TaskState, record: MaterializationRecord) -> dict[int, ShardData]:
    """Return the data of the successors of each shard of a materialization.

    Most endpoints start the successors with the checkpoint of the divided range, and fence the former shard. The data
    are for the other endpoints.
    """
    divided: dict[int, ShardData] = {}
    for number, token in state.tokens.items():
        driver = record.kept.get(number, ShardData()).driver
        data = ShardData(ShardCheckpoint(token, clocks_of(state)).to_bytes(), driver)
        divided |= {2 * number: data, 2 * number + 1: data}
    return divided
