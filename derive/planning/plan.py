"""The plan of a catalog: for each task, the changes after the last run, and the effect of the next run.

A plan is read-only. It calls the same functions as a run: a run does not start a task that the plan shows as waiting,
and runs a task that the plan shows as unchanged without a note.

The pending edits of a task are the edits that the next run applies, and the edits that wait for acceptance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from derive.document.clock import format_rfc3339
from derive.document.exact import parse_exact
from derive.engine.derivation import check_migrations, misplaced
from derive.engine.edits import Unaccepted, edits_of, fingerprints_of, name_of, reset_command
from derive.engine.following import way_to
from derive.engine.inputs import find_pending
from derive.engine.rereading import carried_over, find_rereadings, renaming_of
from derive.engine.task_opening import error_of_reread
from derive.errors import FlowError, OwnedError, SourceReplacedError, StorageError
from derive.materialize.restarts import binding_of
from derive.planning.differences import Change, Facts, TaskPlan, TaskStatus, find_differences
from derive.protocol.definition_text import definition_of, definition_of_materialization
from derive.protocol.specs import CatalogSpec, DerivationSpec, InputSpec, MaterializationSpec
from derive.storage.metadata.descriptions import Edit, PastPart, TaskState
from derive.storage.metadata.owner import Door
from derive.storage.roles import Maintainable, View
from derive.storage.segments.clocks import count_documents
from derive.storage.task_log import recent_entries
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import Place, arrived_places, current_places, current_positions, read_input

_RECENT = 10
"""Number of transactions over which the rate is averaged."""


def present_state(store: View, spec: DerivationSpec | MaterializationSpec) -> TaskState | None:
    """Return the state of a task, with the present names of its transforms; None if the task has never run."""
    state = store.task(spec.name)
    renamed = renaming_of(spec, state) if state and isinstance(spec, DerivationSpec) else None
    return carried_over(state, renamed) if state and renamed else state


def present_positions(
    store: View, spec: DerivationSpec | MaterializationSpec, state: TaskState | None
) -> Mapping[str, int]:
    """Return the position of each input of a task, in microseconds; empty if the task has never run."""
    if state is None:
        return {}
    known = {name: collection.relation for name in spec.sources if (collection := store.collection(name))}
    places = arrived_places(state.places, state.positions)
    return current_positions(spec.inputs, spec.tick, state.positions, places, known)


def find_unaccepted(
    store: View, spec: DerivationSpec | MaterializationSpec, state: TaskState | None
) -> tuple[Unaccepted, ...]:
    """Return the edits of a task that wait for acceptance.

    Args:
        store: the data folder.
        spec: the task.
        state: state of the task, from `present_state`.

    Raises:
        SegmentError: a file of a source cannot be read.
    """
    if state is None:
        return ()
    if isinstance(spec, DerivationSpec):
        return find_rereadings(store, spec, state)
    from derive.engine.stored_bindings import find_stored_edits  # imports gRPC

    return find_stored_edits(spec, state)


def find_edits(
    spec: DerivationSpec | MaterializationSpec,
    state: TaskState | None,
    reset: str,
    unaccepted: Collection[Unaccepted],
) -> tuple[Edit, ...]:
    """Return the edits that are older than some results: recorded edits, and edits that the next run applies.

    Args:
        spec: the task.
        state: state of the task, from `present_state`.
        reset: the command that starts the task over.
        unaccepted: the edits that wait for acceptance; they are not repeated.
    """
    if state is None:
        return ()
    if isinstance(spec, DerivationSpec):
        reported = {edit.former for edit in unaccepted if edit.former is not None}
        return edits_of(spec, state, reset=reset, reported=reported)
    from derive.engine.stored_bindings import remembered_edits  # imports gRPC

    return remembered_edits(spec, state)


def find_waiting_tasks(
    store: View, catalog: CatalogSpec, names: Iterable[str] | None = None
) -> dict[str, tuple[Unaccepted, ...]]:
    """Return the tasks that the next run does not start because of their edits, each with these edits.

    Args:
        store: the data folder.
        catalog: the catalog.
        names: names of the tasks to run; None for all.

    Raises:
        SegmentError: a file of a source cannot be read.
    """
    chosen = [catalog.tasks[name] for name in (catalog.tasks if names is None else names) if name in catalog.tasks]
    waiting = {
        spec.name: find_unaccepted(store, spec, present_state(store, spec)) for spec in chosen if not spec.disabled
    }
    return {name: edits for name, edits in waiting.items() if edits}


def measured_rate(root: Path, task: str) -> float | None:
    """Return source documents per second over the last transactions that read documents; None if no transaction did.

    Transactions before a reset do not count. Rates below 100 are rounded to tenths.
    """
    entries = list(recent_entries(root, task))
    begin = max((number for number, entry in enumerate(entries, start=1) if entry.get("reset")), default=0)
    done = [entry for entry in entries[begin:] if entry.get("documents_in")][-_RECENT:]
    seconds = sum(entry["seconds"] for entry in done)
    if not seconds:
        return None
    rate: float = sum(entry["documents_in"] for entry in done) / seconds
    return round(rate) if rate >= 100 else round(rate, 1)


_NO_DEFINITION = (
    "the definition under which it ran is not stored, because it ran before data folders stored definitions: only"
    " transforms, sources, lambdas, modules and reductions are compared"
)
_NOT_APPLIED = (
    "the definition under which it ran is not stored: only bindings, fields, columns and reductions are compared"
)


_SHADOW = "a shadow of the task exists, so a run without --shadow refuses the task"
_OF_SHADOWS = (
    ("flowctl run --shadow", "to continue the shadow"),
    ("flowctl shadow drop", "to give the shadow up"),
)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task of the catalog that has run, and the findings of the run's own checks.

    Attributes:
        store: the data folder.
        spec: the task.
        state: its state, with the present names of its transforms.
        unaccepted: edits that wait for acceptance.
        rereads: stored documents of each input that reads its source from the start, by state key.
        reset: the command that starts the task over.
        migrations: texts of the migrations that were applied to its shards.
        migrations_error: the error of the applied migrations; None for none.
    """

    store: Maintainable
    spec: DerivationSpec | MaterializationSpec
    state: TaskState
    unaccepted: Sequence[Unaccepted]
    rereads: Mapping[str, int]
    reset: str
    migrations: Sequence[str] = ()
    migrations_error: FlowError | None = None


def plan_tasks(store: Maintainable | None, catalog: CatalogSpec, names: Collection[str] = ()) -> list[TaskPlan]:
    """Return the plans of the tasks of a catalog, in its order, and then of removed tasks.

    A removed task is planned until `flowctl compact` forgets it.

    Args:
        store: the data folder, open for reading; None if there is none.
        catalog: the catalog.
        names: names of the tasks to plan; empty for all.

    Raises:
        SegmentError: a file of a source cannot be read.
    """
    chosen = [spec for name, spec in catalog.tasks.items() if not names or name in names]
    if store is None:
        return [TaskPlan(spec.name, "disabled" if spec.disabled else "added") for spec in chosen]
    known = store.task_capabilities.readers()
    states = [state for state in store.tasks() if state.name in known and state.name not in catalog.tasks]
    removed = [state for state in states if state.positions or state.transactions]
    plans = [_plan(store, spec, removed) for spec in chosen]
    successors = {plan.former: plan.name for plan in plans if plan.former is not None}
    return [
        *plans,
        *(_removed(store, state, successors) for state in removed if not names or state.name in names),
    ]


def _plan(store: Maintainable, spec: DerivationSpec | MaterializationSpec, removed: Sequence[TaskState]) -> TaskPlan:
    if spec.disabled:
        return TaskPlan(spec.name, "disabled")
    state = present_state(store, spec)
    past = store.past(spec.name)
    documents = sum(count_stored(store, spec, item) for item in spec.inputs)
    if state is None or not (state.positions or state.transactions or past):
        return _added(store, spec, removed, documents)
    unaccepted = find_unaccepted(store, spec, state)
    positions = present_positions(store, spec, state)
    new = [item for item in spec.inputs if state.positions and item.state_key not in positions]
    rereads = {item.state_key: count_stored(store, spec, item) for item in new}
    migrations = check_migrations(store, spec, state) if isinstance(spec, DerivationSpec) else ()
    task = _Task(store, spec, state, unaccepted, rereads, reset_command(store, spec.name), *migrations)
    changes, notes = _changes(task, past)
    error = _error(task, positions)
    bound = _bound_sources(store, spec)
    changes = [_closed(change, bound) for change in changes]
    changes = [_overlaid(change, changes, unaccepted) for change in changes]
    changes += _others(task, changes)
    changes += _moves(task, positions, documents)
    if error is not None:
        changes.append(_refused(error))
    status = _status(changes, error, unaccepted)
    commands = () if bound else _commands(task, changes, is_kept=_has_conflict(store, spec))
    if _has_shadow(store, spec.name):
        commands = _OF_SHADOWS
        notes += (_SHADOW,)
    if commands or any(change.effect == "from the start" for change in changes):
        notes += tuple(_compactions(store, spec))
    return TaskPlan(
        spec.name,
        status,
        tuple(changes),
        notes=notes,
        documents=documents,
        rate=measured_rate(store.root, spec.name),
        commands=commands,
    )


def _has_shadow(store: Maintainable, name: str) -> bool:
    """Return whether a task, or a binding of a task, has a present shadow."""
    shadows = store.shadows
    return name in {*(one.task for one in shadows.members()), *(one.task for one in shadows.bindings())}


def count_stored(store: Maintainable, spec: DerivationSpec | MaterializationSpec, item: InputSpec) -> int:
    """Return the number of stored documents that an input would read from the start of its source.

    The number is 0 if the source contradicts its documents so that it cannot be read.

    Raises:
        SegmentError: a file of the source cannot be read.
    """
    source = spec.sources[item.source]
    try:
        segments = store.segments(source, item.selector, BEGINNING)
    except StorageError:
        if store.find_conflict(source) is None:
            raise
        return 0
    return count_documents(store.location, read_input(item, spec.tick, segments, BEGINNING, END_OF_TIME))


def _added(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec, removed: Sequence[TaskState], documents: int
) -> TaskPlan:
    former = next((state.name for state in removed if _is_like(spec, state)), None)
    error = find_refusal(store, spec, None)
    if error is not None:
        return TaskPlan(spec.name, "refused", (_refused(error),))
    meaning = "processes its sources from their start"
    if former is not None:
        stays = "its documents stay" if isinstance(spec, DerivationSpec) else "its tables stay"
        meaning = f"'{former}' under another name, by likeness: {meaning}; '{former}' stops, and {stays}"
    change = Change("the task", "from the start", meaning, former, spec.name, documents=documents)
    notes = tuple(_compactions(store, spec))
    return TaskPlan(spec.name, "added", (change,), former, notes=notes, documents=documents)


def _compactions(store: Maintainable, spec: DerivationSpec | MaterializationSpec) -> Iterator[str]:
    """Yield a note for each source whose start is not as the task would have read it before compaction."""
    from derive.contents.reads import compacted_before  # imports Arrow

    for source in spec.sources.values():
        since = compacted_before(store, source)
        if since is not None and source.name != spec.name:
            yield (
                f"the history of '{source.name}' before {format_rfc3339(since)} is compacted: reading it from the start"
                " gives one document per key"
            )


def _is_like(spec: DerivationSpec | MaterializationSpec, state: TaskState) -> bool:
    """Return whether a new task has the same inputs and lambdas as a removed task."""
    if isinstance(spec, DerivationSpec):
        now, before = (
            sorted(text for key, text in prints.items() if not key.startswith("/"))
            for prints in (fingerprints_of(spec), state.fingerprints)
        )
    else:
        now, before = sorted(item.state_key for item in spec.inputs), sorted(state.fingerprints)
    return bool(now) and now == before


def _removed(store: Maintainable, state: TaskState, successors: Mapping[str, str]) -> TaskPlan:
    meaning = "the catalog has no task of this name: its documents or rows stay"
    if state.name in store.task_capabilities.runs([state.name]):
        meaning = f"{meaning}; another run executes the task now"
    if state.name in successors:
        meaning = f"{meaning}; probably renamed to '{successors[state.name]}'"
    change = Change("the task", "nothing", meaning, state.name, None)
    return TaskPlan(state.name, "removed", (change,))


def _changes(task: _Task, past: Sequence[PastPart]) -> tuple[list[Change], tuple[str, ...]]:
    """Return the changes of a task that has run, without regard to acceptance, and notes."""
    spec, state = task.spec, task.state
    if isinstance(spec, MaterializationSpec):
        from derive.planning.differences import binding_changes, definition_changes  # imports gRPC

        changes = list(binding_changes(spec, state, dict(task.rereads)))
        applied, present = task.store.applied(spec.name), definition_of_materialization(spec).text
        if applied is None:
            return changes, (_NOT_APPLIED,)
        if applied != present:
            changes += definition_changes(parse_exact(applied.encode()), parse_exact(present.encode()))
        return changes, ()
    if not past:
        return [], (_NO_DEFINITION,)
    before, after = parse_exact(past[-1].definition.encode()), parse_exact(definition_of(spec).text.encode())
    _replace_migrations(before, task.migrations)
    if before == after:
        return [], ()
    known = task.store.collection(spec.name)
    facts = Facts(
        applied=len(task.migrations),
        has_sharded_state=bool(state.tokens) and state.shards > 1,
        has_documents=known is not None and known.documents > 0,
        rereads=task.rereads,
        formers={name_of(edit.part): edit.former for edit in task.unaccepted if edit.former is not None},
    )
    changes = list(find_differences(before, after, facts))
    return changes or [Change("the definition", "nothing", "differs in details without an effect on documents")], ()


def _replace_migrations(before: Any, applied: Sequence[str]) -> None:
    """Replace the migrations of the last definition by the applied migrations if it does not continue these.

    Older versions committed transactions without documents by definitions whose edited migrations they refused later.
    """
    config = before["connector_config"] or {}
    migrations = config.get("migrations")
    if isinstance(migrations, list) and migrations[: len(applied)] != [*applied]:
        config["migrations"] = [*applied]


def _overlaid(change: Change, changes: Sequence[Change], unaccepted: Sequence[Unaccepted]) -> Change:
    """Return a change as waiting if it is the first change of a part whose edit waits for acceptance."""
    for edit in unaccepted:
        first = next((other for other in changes if other.key == edit.part), None)
        if change is first:
            return replace(change, effect="waits", meaning=edit.message, hint=edit.hint)
    return change


def _others(task: _Task, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that only the checks of a run find: fingerprints differ, or no definition is stored."""
    name = name_of if isinstance(task.spec, DerivationSpec) else binding_of
    covered = {name(change.key) for change in changes if change.key}
    waiting = {edit.part for edit in task.unaccepted}
    more = [
        Change(name(edit.part), "waits", edit.message, key=edit.part, hint=edit.hint)
        for edit in task.unaccepted
        if not any(change.key == edit.part for change in changes)
    ]
    for key, documents in task.rereads.items():
        if name(key) not in covered and key not in waiting:
            meaning = "reads its source from the start"
            more.append(Change(name(key), "from the start", meaning, key=key, documents=documents))
    edits = find_edits(task.spec, task.state, task.reset, task.unaccepted)
    for edit in edits:
        if edit.at is None and isinstance(task.spec, DerivationSpec) and name(edit.part) not in covered:
            more.append(Change(name(edit.part).removeprefix("/"), "new documents", edit.message, key=edit.part))
    return more


def _moves(task: _Task, positions: Mapping[str, int], documents: int) -> Iterator[Change]:
    """Yield the inputs that follow their source to another relation, with the effect on the next run.

    Args:
        task: the task.
        positions: position of each input that continues, by state key.
        documents: number of stored documents of all sources.
    """
    store, spec = task.store, task.spec
    is_derived = isinstance(spec, DerivationSpec)
    relations, former = _relations(task)
    for item in spec.inputs:
        place = former.get(item.state_key)
        if not item.follows or item.state_key not in positions or place is None or place.switch is not None:
            continue
        if not place.relation or relations.get(item.source) == place.relation:
            continue
        fate = store.describe_fate(item.source, place.relation)
        part = f"{item.name}: relation of '{item.source}'"
        match way_to(store, spec, item, place):
            case "again":
                which = "the task" if is_derived else "the binding"
                count = documents if is_derived else count_stored(store, spec, item)
                yield Change(part, "from the start", f"{fate}: {which} starts over", documents=count)
            case "switch":
                meaning = "the rows that were read are retracted, and the rows of the new relation are read"
                yield Change(part, "new documents", f"{fate}: {meaning}")
            case "wait":
                yield Change(part, "nothing", f"{fate}: '{item.name}' waits until a relation has the name")


def _relations(task: _Task) -> tuple[dict[str, int], dict[str, Place]]:
    """Return the present relation of each source, and the place that each input has reached, by state key."""
    store, spec, state = task.store, task.spec, task.state
    recorded = arrived_places(state.places, state.positions)
    relations = {name: known.relation for name in spec.sources if (known := store.collection(name))}
    return relations, current_places(spec.inputs, recorded, relations)


def _refused(error: FlowError) -> Change:
    return Change("the next run", "refused", f"the task stops: {error.message}", hint=error.hint or "")


def find_refusal(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec, state: TaskState | None
) -> FlowError | None:
    """Return the error of a task's collections or shuffles with which the next run stops; None without an error.

    Args:
        store: the data folder.
        spec: the task.
        state: state of the task, from `present_state`.
    """
    own = [spec.collection] if isinstance(spec, DerivationSpec) else []
    for collection in (*spec.sources.values(), *own):
        conflict = store.find_conflict(collection)
        if conflict is not None:
            return conflict
    try:
        if own:
            store.require_open(spec.name, Door.TASK)
    except OwnedError as error:
        return error
    if state is not None and isinstance(spec, DerivationSpec):
        return misplaced(spec, state, reset_command(store, spec.name))
    return None


def _bound_sources(store: Maintainable, spec: DerivationSpec | MaterializationSpec) -> frozenset[str]:
    """Return the ingested sources that contradict their documents, which neither a reset nor a shadow settles."""
    conflicts = (name for name, source in spec.sources.items() if store.find_conflict(source) is not None)
    return frozenset(name for name in conflicts if store.task(name) is None)


def _has_conflict(store: Maintainable, spec: DerivationSpec | MaterializationSpec) -> bool:
    """Return whether another collection that a task reads contradicts its documents, so that a reset does not help."""
    return any(store.find_conflict(source) is not None for name, source in spec.sources.items() if name != spec.name)


def _closed(change: Change, bound: Collection[str]) -> Change:
    """Return a change of the key of a source as refused if the source contradicts its documents."""
    name = change.part.removeprefix("key of ")
    if name == change.part or name not in bound:
        return change
    return replace(change, effect="refused", meaning=f"'{name}' has documents, which are stored by the former key")


def _error(task: _Task, positions: Mapping[str, int]) -> FlowError | None:
    """Return the error with which the next run of a task stops, apart from waiting edits; None if missing."""
    store, spec, state = task.store, task.spec, task.state
    error = find_refusal(store, spec, state) or task.migrations_error
    if error is not None or task.unaccepted:
        return error
    relations, former = _relations(task)
    error = error_of_reread(store, spec, former, positions, relations)
    if error is None:
        begun = [item.state_key for item in spec.inputs if item.state_key in positions]
        places = {key: former[key] for key in begun if key in former}
        try:
            find_pending(store, spec, positions, places)
        except SourceReplacedError as exc:
            error = exc
    return error


def _status(changes: Sequence[Change], error: FlowError | None, unaccepted: Sequence[Unaccepted]) -> TaskStatus:
    if error is not None:
        return "refused"
    if unaccepted:
        return "waits"
    if any(change.effect == "refused" for change in changes):
        return "refused"
    return "changed" if changes else "unchanged"


def _commands(task: _Task, changes: Sequence[Change], *, is_kept: bool) -> tuple[tuple[str, str], ...]:
    """Return the commands that give an edit another effect, each with its purpose.

    Args:
        task: the task.
        changes: its changes.
        is_kept: whether a reset of the task alone is refused like the next run.
    """
    effects = {change.effect for change in changes}
    accept = [(f"flowctl run --accept {task.spec.name}", "to accept the waiting edit")] if task.unaccepted else []
    start = [(task.reset, "to start over")] if effects & {"waits", "refused", "new documents", "from the start"} else []
    has_definition = isinstance(task.spec, DerivationSpec) and bool(task.store.past(task.spec.name))
    shadow = [("flowctl run --shadow", "to replace the documents at one time")] if start and has_definition else []
    raised = [change for change in changes if change.part.endswith(": backfill") and change.effect == "from the start"]
    if raised and not isinstance(task.spec, DerivationSpec):
        shadow = [("flowctl run --shadow", "to keep the rows up to date until the new rows replace them")]
    return (*accept, *shadow, *([] if is_kept else start))


def with_endpoint(plan: TaskPlan, changes: Sequence[Change], notes: Sequence[str]) -> TaskPlan:
    """Return the plan of a materialization with the changes at its endpoint."""
    all_ = (*plan.changes, *changes)
    status = plan.status
    if status in ("added", "unchanged", "changed") and any(change.effect == "refused" for change in changes):
        status = "refused"
    elif status == "unchanged" and changes:
        status = "changed"
    return replace(plan, changes=all_, status=status, notes=(*plan.notes, *notes))
