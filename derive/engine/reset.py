"""Starting a task over: what it derived or stored, its state and its progress go, and its sources stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import lcm

from derive.errors import UsageError
from derive.failpoint import reach
from derive.materialize.restart import KEPT, announce, next_restart, settle
from derive.protocol.specs import CatalogSpec
from derive.shard.state import epochs_lock, remove_state
from derive.storage.metadata.descriptions import TaskState
from derive.storage.roles import Kept
from derive.storage.task_log import TaskLog
from derive.time.frontier import tick_begin


def readers_of(catalog: CatalogSpec, store: Kept, names: Sequence[str]) -> list[str]:
    """Tasks that have run and that read any of `names`, themselves or through others; in catalog order."""
    reached = set(names)
    grown = True
    while grown:
        before = len(reached)
        reached |= {name for name, spec in catalog.tasks.items() if not reached.isdisjoint(spec.sources)}
        grown = len(reached) > before
    return [name for name in catalog.tasks if name in reached and name not in names and store.task(name) is not None]


def reset(catalog: CatalogSpec, store: Kept, names: Sequence[str], *, cascade: bool = False) -> list[str]:
    """Start tasks over, all of them or none.

    The metadata commit decides; files are removed after it, and what a crash leaves of them is collected when the task
    runs again. A run that is under way is fenced by it.

    Args:
        catalog: defines them.
        store: holds what they derived.
        names: of tasks.
        cascade: also reset the tasks that read them; of a materialization, only the bindings that do.

    Returns:
        What was reset.

    Raises:
        UsageError: a name is no task, or one that is read by another which is not reset, such as one of another
            catalog.
    """
    for name in names:
        catalog.find_task(name)
    readers = readers_of(catalog, store, names)
    if readers and not cascade:
        raise UsageError(
            f"{', '.join(readers)} read {'them' if len(names) > 1 else 'it'}, and would keep what followed from the old"
            " documents",
            hint="add --cascade to reset these too",
        )
    chosen = [*names, *readers]
    _refuse_others(catalog, store, chosen)
    parts = {name: keys for name in readers if (keys := _parts(catalog, store, name, chosen))}
    ticks = {task.tick for task in catalog.tasks.values()}
    start_over(store, chosen, [name for name in chosen if name in catalog.materializations], parts, ticks)
    return chosen


def start_over(
    store: Kept,
    names: Sequence[str],
    materialized: Sequence[str],
    parts: Mapping[str, Sequence[str]] | None = None,
    ticks: Collection[int] = (),
) -> None:
    """Forget what tasks have derived and how far they were, whoever reads them; runs of them are fenced.

    Args:
        store: holds what they derived.
        names: of the tasks.
        materialized: those that are materializations.
        parts: of those of which only some bindings start over, the state keys of these.
        ticks: of all tasks, microseconds.
    """
    parts = parts or {}
    # A run that begins meanwhile publishes its epoch, and so writes its first file, when this is over.
    with epochs_lock(store.root):
        for name in materialized:
            settle(store.root, name, store.task(name))
        for name in materialized:
            state = store.task(name)
            uppers = _uppers(store, state, ticks) if state else {}
            restart = next_restart(store.root, name, state, parts.get(name, ()), uppers)
            announce(store.root, name, restart)
        reach("reset.committing")
        store.reset([name for name in names if name not in parts], parts)
        reach("reset.committed")
        for name in names:
            _clean(store, name, parts.get(name, ()), is_materialized=name in materialized)


def _uppers(store: Kept, state: TaskState, ticks: Collection[int]) -> dict[str, int]:
    """Before which clock the sources of a materialization (by name) have documents, or come to have them anew.

    Each is a clock that the frontier of the source reaches, whatever the ticks are by which it is derived.
    """
    present = store.timeline.present()
    reached = tick_begin(present, lcm(*ticks))
    uppers = {}
    for source in {place.source for place in state.places.values()}:
        known = store.collection(source)
        if known is not None:
            uppers[source] = reached if store.task(source) is not None else min(known.sound, present)
    return uppers


def _parts(catalog: CatalogSpec, store: Kept, name: str, chosen: Sequence[str]) -> list[str]:
    """State keys of the bindings of a materialization that read what is reset; none if that are all, or no bindings."""
    spec, state = catalog.materializations.get(name), store.task(name)
    if spec is None or state is None:
        return []
    sources = {item.state_key: item.source for item in spec.inputs}
    sources |= {key: place.source for key, place in state.places.items() if key not in sources}
    keys = sorted(key for key, source in sources.items() if source in chosen)
    return keys if len(keys) < len(sources) else []


def _clean(store: Kept, name: str, keys: Sequence[str], *, is_materialized: bool) -> None:
    """Remove the files of a task that was reset, and tell of it; of a part of one, which keys that are."""
    if keys:
        settle(store.root, name, store.task(name))
        what = ", ".join(f"'{key}'" for key in keys)
        TaskLog(store.root, name).write("info", f"of it {what} starts over, as what it reads does; the rest goes on")
        return
    remove_state(store.root, name, keep=KEPT if is_materialized else ())
    reach("reset.removed")
    if is_materialized:
        settle(store.root, name, None)
        TaskLog(store.root, name).write("info", "it starts over: what it has stored goes first", reset=True)
        return
    store.garbage.collect_uncommitted(name)
    TaskLog(store.root, name).write("info", "it starts over: what it had derived is gone", reset=True)


def _refuse_others(catalog: CatalogSpec, store: Kept, names: Sequence[str]) -> None:
    """Require that no derivation which only another catalog defines has processed what is about to be reset."""
    others = []
    for name in sorted(store.rights.readers(names) - set(catalog.tasks)):
        state = store.task(name)
        if state is not None and state.positions:
            others.append(name)
    if others:
        read = f"{', '.join(others)}, which this catalog does not define, {'read' if len(others) > 1 else 'reads'}"
        raise UsageError(
            f"{read} {', '.join(names)}, and would keep what followed from the old documents",
            hint="reset what reads first, with the catalog that defines it; what no catalog defines any more is"
            " forgotten by 'flowctl compact'",
        )
