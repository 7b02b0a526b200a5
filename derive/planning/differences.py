"""Differences between two definitions of a derivation or materialization, as a data folder stores them; their effects.

Definitions are compared as JSON (`derive.protocol.definition_text`), so the comparison needs no salts, and no connector
of the former definition. A difference without a rule in this module is reported by its JSON pointer.

Of a materialization, passwords that are written in clear are left out.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from derive.document.clock import format_duration, format_rfc3339
from derive.document.exact import dump_exact
from derive.document.pointer import JSON
from derive.engine.stored_bindings import StoredParts, stored_fields
from derive.errors import CatalogError, FlowError
from derive.materialize.restarts import ResetMarker, binding_of
from derive.plural import counted
from derive.protocol.materialization import connector_of
from derive.protocol.specs import BindingSpec, MaterializationSpec
from derive.reduce.reduce_keyword import annotated_locations
from derive.storage.metadata.descriptions import TaskState
from derive.time import BEGINNING

if TYPE_CHECKING:
    from derive.materialize.connector import Connectors
    from derive.materialize.preparation import PreparedMaterialization

Effect: TypeAlias = Literal["nothing", "new documents", "from the start", "endpoint", "waits", "refused"]
"""Effect of a change. In this order: no effect; an effect on documents that are read from now on; a source is read from
its start; columns of the endpoint change; the task waits for acceptance; the task stops until the change is undone or
the task is reset."""

TaskStatus: TypeAlias = Literal["unchanged", "added", "removed", "disabled", "changed", "waits", "refused"]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the last run of a task and its definition in the catalog.

    Attributes:
        part: the changed part, such as `fromOrders: lambda`.
        effect: kind of the effect.
        meaning: the effect, as a sentence without a full stop.
        before: the former value, as JSON; None if there was none.
        after: the present value, as JSON; None if there is none.
        diff: lines of a unified diff of the two values, for texts.
        key: the part in fingerprints of the task; empty for parts that fingerprints do not cover.
        documents: number of stored documents that are read because of the change.
        hint: ways to another effect; empty if missing.
    """

    part: str
    effect: Effect
    meaning: str
    before: JSON = None
    after: JSON = None
    diff: tuple[str, ...] = ()
    key: str = ""
    documents: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of one task.

    Attributes:
        name: name of the task.
        status: summary of the changes.
        changes: the changes, in the order of the catalog.
        former: name of the removed task that was probably renamed to this task; None if missing.
        notes: more information, such as the reason for an incomplete comparison.
        documents: number of stored documents of the sources, which the task would read after a start over.
        rate: documents per second in the last transactions; None if unknown.
        commands: commands that settle the changes, each with its effect.
    """

    name: str
    status: TaskStatus
    changes: tuple[Change, ...] = ()
    former: str | None = None
    notes: tuple[str, ...] = ()
    documents: int | None = None
    rate: float | None = None
    commands: tuple[tuple[str, str], ...] = ()

    def seconds(self, documents: int | None) -> float | None:
        """Return the time for reading some documents at the task's rate, in seconds; None if unknown."""
        return documents / self.rate if documents is not None and self.rate else None


def text_diff(before: str | None, after: str | None) -> tuple[str, ...]:
    """Return the lines of a unified diff of two texts, without its header.

    >>> text_diff("SELECT 1;", "SELECT 2;")
    ('-SELECT 1;', '+SELECT 2;')
    """
    old, new = ((text or "").strip("\n").splitlines() for text in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    is_one = sum(line.startswith("@@") for line in lines) == 1
    return tuple(line for line in lines if not (is_one and line.startswith("@@")))


def json_differences(before: JSON, after: JSON, pointer: str = "") -> Iterator[tuple[str, JSON, JSON]]:
    """Yield the JSON pointer and both values of each difference; a value that is missing is None.

    >>> list(json_differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}}))
    [('/a', 1, None), ('/b/c', 2, 3)]
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            token = name.replace("~", "~0").replace("/", "~1")
            yield from json_differences(before.get(name), after.get(name), f"{pointer}/{token}")
    elif dump_exact(before) != dump_exact(after):
        yield pointer, before, after


_NEW_ONLY = "applies to documents processed from now on"
_READ_ONLY = "applies to documents read from now on"
_STAYS = f"{_NEW_ONLY}; published documents stay as they are"
_ANNOTATIONS = ("title", "description", "examples", "$comment", "readOnly", "writeOnly", "deprecated")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a task on which the effects of its changes depend.

    Attributes:
        applied: number of the first migrations that were applied to a shard.
        has_sharded_state: whether several shards have stored state.
        has_documents: whether the collection has documents.
        rereads: stored documents of each input that reads its source from the start, by state key.
        formers: for each new transform (by name), the name of the removed transform that it probably replaces.
    """

    applied: int = 0
    has_sharded_state: bool = False
    has_documents: bool = False
    rereads: Mapping[str, int] = field(default_factory=dict)
    formers: Mapping[str, str] = field(default_factory=dict)


def find_differences(before: Any, after: Any, facts: Facts) -> Iterator[Change]:
    """Yield the changes from one definition of a derivation to another.

    Args:
        before: the former definition, parsed.
        after: the present definition, parsed.
        facts: facts about the task.
    """
    yield from _transforms(before, after, facts)
    yield from _configuration(before, after, facts)
    yield from _collection(before["collection"], after["collection"], facts)
    for name in after["sources"]:
        if name in before["sources"] and name != after["collection"]["name"]:
            yield from _source(name, before["sources"][name], after["sources"][name])
    if before["tick"] != after["tick"]:
        ticks = format_duration(before["tick"]), format_duration(after["tick"])
        yield Change("shards.maxTxnDuration", "new documents", _NEW_ONLY, *ticks)


def _state_key(transform: Any) -> str:
    backfill = transform["input"]["backfill"]
    return f"{transform['input']['name']}.v{backfill}" if backfill else transform["input"]["name"]


def _transforms(before: Any, after: Any, facts: Facts) -> Iterator[Change]:
    older = {transform["input"]["name"]: transform for transform in before["transforms"]}
    newer = {transform["input"]["name"]: transform for transform in after["transforms"]}
    gone = dict.fromkeys(name for name in older if name not in newer)
    order: list[str] = []
    for name, new in newer.items():
        old, key = older.get(name), _state_key(new)
        if old is None and new["formerly"] in gone:
            old = older[new["formerly"]]
            del gone[new["formerly"]]
            meaning = "continues where it stopped, because of 'formerly'"
            yield Change(f"{name}: name", "nothing", meaning, old["input"]["name"], name, key=key)
        if old is not None:
            order.append(old["input"]["name"])
            yield from _transform(name, old, new, facts)
            continue
        likely = facts.formers.get(name)
        likeness = next((other for other in gone if other == likely or _is_like(older[other], new)), None)
        documents = facts.rereads.get(key)
        effect: Effect = "nothing" if documents is None else "from the start"
        start = f"reads '{new['input']['source']}' from its start"
        meaning = "continues where it stopped when it was removed" if documents is None else start
        if likeness is None:
            diff = text_diff(None, new["script"])
            yield Change(name, effect, meaning, None, "added", diff, key, documents)
        else:
            del gone[likeness]
            meaning = f"'{likeness}' under another name, by likeness: {meaning}"
            yield Change(f"{name}: name", effect, meaning, likeness, name, (), key, documents)
            yield from _transform(name, older[likeness], new, facts)
    for name in gone:
        meaning = "its published documents stay, and it reads no more documents"
        yield Change(name, "nothing", meaning, "removed", None, text_diff(older[name]["script"], None), name)
    if order != [name for name in older if name in order]:
        yield Change("order of transforms", "new documents", _READ_ONLY, [*older], [*newer])


def _is_like(old: Any, new: Any) -> bool:
    is_same_lambda = (old["script"] or "").strip() == (new["script"] or "").strip()
    return old["input"]["source"] == new["input"]["source"] and is_same_lambda


def _transform(name: str, old: Any, new: Any, facts: Facts) -> Iterator[Change]:
    key, was, now = _state_key(new), old["input"], new["input"]
    if (old["script"] or "").strip() != (new["script"] or "").strip():
        diff = text_diff(old["script"], new["script"])
        yield Change(f"{name}: lambda", "new documents", _STAYS, old["script"], new["script"], diff, key)
    documents = facts.rereads.get(key)
    start: Effect = "nothing" if documents is None else "from the start"
    if was["source"] != now["source"]:
        meaning = "reads the new source from its start; results of the old one stay"
        meaning = meaning if documents is not None else "continues where it stopped in this source"
        yield Change(f"{name}: source", start, meaning, was["source"], now["source"], (), key, documents)
    elif was["backfill"] != now["backfill"]:
        meaning = "reads its source from the start, and adds the results to those published before"
        meaning = meaning if documents is not None else "continues where it stopped under this number"
        yield Change(f"{name}: backfill", start, meaning, was["backfill"], now["backfill"], (), key, documents)
    if old["shuffle"] != new["shuffle"]:
        yield _shuffle(name, old["shuffle"], new["shuffle"], facts)
    yield from changed_reads(name, was, now, ("read_delay", "priority", "not_before", "not_after", "selector"))
    yield from changed_policy(name, was, now)
    yield from _violations(name, old, new)
    if was["feedback"] != now["feedback"]:
        meaning = "true if the source lies on a cycle: then documents are read one tick later"
        yield Change(f"{name}: feedback", "new documents", meaning, was["feedback"], now["feedback"])


def changed_reads(name: str, was: Any, now: Any, properties: Iterable[str]) -> Iterator[Change]:
    """Yield the changed properties of an input that apply to documents read from now on.

    Args:
        name: name of the input.
        was: the former input, as JSON of its definition.
        now: the present input.
        properties: names of the properties to compare.
    """
    for property_ in properties:
        if was[property_] != now[property_]:
            shown, meaning, form = _READ_PROPERTIES[property_]
            yield Change(f"{name}: {shown}", "new documents", meaning, form(was[property_]), form(now[property_]))


def changed_policy(name: str, was: Any, now: Any) -> Iterator[Change]:
    """Yield the change of `onSourceReset` of an input."""
    if was["follows"] != now["follows"]:
        policies = {True: "follow", False: "stop"}
        meaning = "applies when the source becomes another relation"
        values = policies[was["follows"]], policies[now["follows"]]
        yield Change(f"{name}: onSourceReset", "nothing", meaning, *values)


def _violations(name: str, old: Any, new: Any) -> Iterator[Change]:
    """Yield the change of `onViolation` of a transform."""
    was, now = old.get("quarantines", False), new["quarantines"]
    if was != now:
        policies = {True: "quarantine", False: "stop"}
        meaning = "applies to documents that fail from now on"
        yield Change(f"{name}: onViolation", "new documents", meaning, policies[was], policies[now])


def _same(value: JSON) -> JSON:
    return value


def _time(value: int | None) -> str | None:
    return None if value is None else format_rfc3339(value)


_READ_PROPERTIES: Mapping[str, tuple[str, str, Callable[[Any], JSON]]] = {
    "read_delay": (
        "readDelay",
        "processed documents stay processed; the delay applies to all other documents",
        format_duration,
    ),
    "priority": ("priority", _READ_ONLY, _same),
    "not_before": ("notBefore", _READ_ONLY, _time),
    "not_after": ("notAfter", _READ_ONLY, _time),
    "selector": ("partitions", _READ_ONLY, _same),
}
"""Property of a catalog, meaning of a change and form of the values, by name in a definition."""


def _shuffle(name: str, old: Any, new: Any, facts: Facts) -> Change:
    effect: Effect = "refused" if facts.has_sharded_state else "new documents"
    meaning = "decides from now on which documents share state"
    if facts.has_sharded_state:
        meaning = "the task stops, because the state lies in the shards of the old shuffle: shuffle as before, or reset"
    diff = text_diff(old["script"], new["script"]) if old["script"] and new["script"] else ()
    return Change(f"{name}: shuffle", effect, meaning, _way(old), _way(new), diff)


def _way(shuffle: Any) -> str:
    if shuffle["kind"] == "key":
        return f"key [{', '.join(shuffle['key'])}]"
    return str(shuffle["script"] or shuffle["kind"])


def _configuration(before: Any, after: Any, facts: Facts) -> Iterator[Change]:
    if before["connector"] != after["connector"]:
        yield Change("using", "new documents", _STAYS, before["connector"], after["connector"])
        return
    old, new = before["connector_config"] or {}, after["connector_config"] or {}
    older, newer = old.get("migrations"), new.get("migrations")
    if isinstance(older, list) and isinstance(newer, list):
        yield from _migrations(older, newer, facts)
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if name == "migrations" or was == now:
            continue
        if name in _FILES:
            yield from _files(was or [], now or [])
        elif isinstance(was, str) and isinstance(now, str):
            yield Change(name, "new documents", _STAYS, was, now, text_diff(was, now), f"/{name}")
        else:
            yield Change(name, "new documents", _NEW_ONLY, was, now)


def _migrations(older: list[str], newer: list[str], facts: Facts) -> Iterator[Change]:
    for index in range(max(len(older), len(newer))):
        old, new = (texts[index] if index < len(texts) else None for texts in (older, newer))
        if old == new:
            continue
        effect: Effect = "new documents"
        meaning = "applied before the next document"
        if new is None:
            effect, meaning = "nothing", "was never applied"
        if index < facts.applied:
            effect, meaning = "refused", "the task stops, because this migration was applied: undo the edit, or reset"
        yield Change(f"migration {index}", effect, meaning, old, new, text_diff(old, new))


_FILES = ("imports", "files")
"""Properties of a module's configuration that hold files, each with its path and its content in base64."""


def _files(older: list[Any], newer: list[Any]) -> Iterator[Change]:
    before, after = ({file["path"]: file["content"] for file in files} for files in (older, newer))
    for path in dict.fromkeys([*before, *after]):
        if before.get(path) != after.get(path):
            was, now = _text(before.get(path)), _text(after.get(path))
            yield Change(path, "new documents", _STAYS, was, now, text_diff(was, now), "/module")


def _text(content: str | None) -> str | None:
    """Return the text of a file; its size if the file is no text."""
    if content is None:
        return None
    data = base64.b64decode(content)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return counted(len(data), "byte")


def _collection(old: Any, new: Any, facts: Facts) -> Iterator[Change]:
    effect: Effect = "refused" if facts.has_documents else "new documents"
    meaning = "refused while the collection has documents: undo the edit, or reset"
    meaning = meaning if facts.has_documents else "the collection has no documents yet"
    if old["key"] != new["key"]:
        yield Change("key", effect, meaning, old["key"], new["key"])
    partitions = [[field["field"], field["pointer"]] for field in old["projections"] if field["is_partition"]]
    others = [[field["field"], field["pointer"]] for field in new["projections"] if field["is_partition"]]
    if partitions != others:
        yield Change("partitions", effect, meaning, partitions, others)
    yield from _reductions(old["write_schema"], new["write_schema"])
    is_one = old["write_schema"] == old["read_schema"] and new["write_schema"] == new["read_schema"]
    fits = "new documents must fit the schema; readers see all documents through it"
    for name, shown in {"write_schema": "schema" if is_one else "writeSchema", "read_schema": "readSchema"}.items():
        if name == "write_schema" or not is_one:
            yield from _schema(shown, old[name], new[name], "new documents", fits)
    yield from _fields(old["projections"], new["projections"])
    if old["redaction"] != new["redaction"]:
        yield Change("redact", "new documents", "applies to documents published from now on")


def _reductions(old: JSON, new: JSON) -> Iterator[Change]:
    before, after = annotated_locations(old), annotated_locations(new)
    meaning = "readers use it for all documents; stored documents stay as they were reduced"
    for location in dict.fromkeys([*before, *after]):
        was, now = before.get(location, ""), after.get(location, "")
        if was != now:
            where = f"reduction of {location or 'documents'}"
            yield Change(where, "new documents", meaning, was or None, now or None, key="/reductions")


def _schema(shown: str, old: JSON, new: JSON, effect: Effect, meaning: str) -> Iterator[Change]:
    for pointer, was, now in json_differences(old, new):
        tokens = pointer.split("/")
        if "reduce" in tokens:
            continue
        is_annotation = tokens[-1] in _ANNOTATIONS and tokens[-2:-1] != ["properties"]
        text = "an annotation without an effect on documents" if is_annotation else meaning
        yield Change(f"{shown} {pointer}", "nothing" if is_annotation else effect, text, was, now)


def _fields(old: Any, new: Any) -> Iterator[Change]:
    """Yield the added, removed and moved projections that authors have declared."""
    before, after = ({item["field"]: item["pointer"] for item in items if item["explicit"]} for items in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            meaning = "renames a field for lambdas, partitions and materializations"
            yield Change(f"projection {name}", "new documents", meaning, before.get(name), after.get(name))


def _source(name: str, old: Any, new: Any) -> Iterator[Change]:
    if old["key"] != new["key"]:
        meaning = f"allowed only while '{name}' has no documents"
        yield Change(f"key of {name}", "new documents", meaning, old["key"], new["key"])
    meaning = "a stored document that does not fit stops the task that reads it"
    yield from _schema(f"schema of {name}:", old["read_schema"], new["read_schema"], "new documents", meaning)


def plan_endpoint(
    restart: ResetMarker, spec: MaterializationSpec, connectors: Connectors, state: TaskState | None
) -> tuple[PreparedMaterialization, str]:
    """Return a validated materialization, and the connector's description of the actions of the next run.

    Args:
        restart: last reset of the materialization.
        spec: the materialization.
        connectors: the connectors.
        state: progress of the materialization; None if it has none.

    Raises:
        CatalogError: the catalog conflicts with the connector.
        FlowError: the connector does not answer or refuses.
    """
    from derive.materialize.preparation import prepare  # imports gRPC

    connector = connectors.connect(spec.endpoint)
    fields = stored_fields(state.fingerprints if state else {})
    prepared = prepare(spec, connector, fields, restart)
    begun = [key for key, position in (state.positions if state else {}).items() if position > BEGINNING]
    return prepared, prepared.apply(connector, dry_run=True, begun=begun).description


def binding_changes(spec: MaterializationSpec, state: TaskState, rereads: dict[str, int]) -> Iterator[Change]:
    """Yield the changes of bindings after the last run.

    Args:
        spec: the materialization.
        state: progress of the materialization.
        rereads: stored documents of each binding that reads its source from the start, by state key.
    """
    known = {binding_of(key) for key in (*state.positions, *state.fingerprints)}
    for binding in spec.bindings:
        key = binding.input.state_key
        if key in rereads and binding.name in known:
            meaning = "the binding starts over: its rows are stored again"
            backfill = binding.input.backfill
            yield Change(f"{binding.name}: backfill", "from the start", meaning, None, backfill, (), key, rereads[key])
        elif key in rereads:
            meaning = f"a new binding: stores all documents of '{binding.collection.name}'"
            yield Change(binding.name, "from the start", meaning, None, "added", (), key, rereads[key])
        elif key in state.fingerprints:
            yield from _binding_reductions(binding, StoredParts.from_text(state.fingerprints[key]))


def definition_changes(before: Any, after: Any) -> Iterator[Change]:
    """Yield the changes from one definition of a materialization to another, except of added bindings.

    Args:
        before: the former definition, parsed.
        after: the present definition, parsed.
    """
    yield from _endpoint(before["endpoint"], after["endpoint"])
    older, newer = ({one["input"]["name"]: one for one in definition["bindings"]} for definition in (before, after))
    for name, new in newer.items():
        if name in older:
            yield from _binding(name, older[name], new)
    for name in older:
        if name not in newer:
            meaning = (
                "its table stays, and gets no more documents; a binding that comes back continues where it stopped"
            )
            yield Change(name, "nothing", meaning, "removed", None)
    if [name for name in older if name in newer] != [name for name in newer if name in older]:
        yield Change("order of bindings", "nothing", "no effect on stored rows", [*older], [*newer])
    if before["tick"] != after["tick"]:
        ticks = format_duration(before["tick"]), format_duration(after["tick"])
        yield Change("shards.maxTxnDuration", "nothing", "no effect on stored rows", *ticks)


_REACHED = "the next run connects to it; where it has no checkpoint of this materialization, all rows are stored again"
_IMAGE = "registry and tag have no effect: the installed connector with the name of the image runs"


def _endpoint(before: Any, after: Any) -> Iterator[Change]:
    for pointer, was, now in json_differences(before, after):
        effect: Effect = "endpoint"
        meaning = _REACHED
        if pointer == "/image" and was and now and connector_of(was) == connector_of(now):
            effect, meaning = "nothing", _IMAGE
        yield Change(f"endpoint{pointer}", effect, meaning, was, now)


def _binding(name: str, before: Any, after: Any) -> Iterator[Change]:
    was, now = before["input"], after["input"]
    if was["priority"] != now["priority"]:
        meaning = "bindings are stored in another order; no effect on stored rows"
        yield Change(f"{name}: priority", "nothing", meaning, was["priority"], now["priority"])
    yield from changed_reads(name, was, now, ("read_delay", "not_before", "not_after", "selector"))
    yield from changed_policy(name, was, now)
    for pointer, old, new in json_differences(before["resource"], after["resource"]):
        meaning = "the connector gets the new value with the next run"
        yield Change(f"{name}: resource{pointer}", "endpoint", meaning, old, new)
    old_fields, new_fields = before["fields"], after["fields"]
    if old_fields["key"] != new_fields["key"]:
        meaning = "the fields that identify a row: the connector decides whether the present table has them as its key"
        yield Change(f"{name}: key", "endpoint", meaning, old_fields["key"] or None, new_fields["key"] or None)
    for pointer, old, new in json_differences({**old_fields, "key": None}, {**new_fields, "key": None}):
        meaning = "selects the columns of the next run, which are listed below if they differ"
        yield Change(f"{name}: fields{pointer}", "endpoint", meaning, old, new)


def _binding_reductions(binding: BindingSpec, before: StoredParts) -> Iterator[Change]:
    """Yield changes of reductions that do not wait for acceptance."""
    for location, now in annotated_locations(binding.collection.read_schema).items():
        was = before.reductions.get(location)
        if now != (was or "") and (was is None or before.is_delta):
            part = f"{binding.name}: reduction of {location or 'documents'}"
            yield Change(part, "new documents", "used for rows stored from now on", was or None, now or None)


def endpoint_changes(
    restart: ResetMarker, spec: MaterializationSpec, connectors: Connectors, state: TaskState | None
) -> tuple[list[Change], list[str]]:
    """Return the changes at the endpoint and its columns, and notes.

    Args:
        restart: last reset of the materialization.
        spec: the materialization.
        connectors: the connectors, which return the constraints and actions.
        state: progress of the materialization; None if it has none.
    """
    try:
        prepared, action = plan_endpoint(restart, spec, connectors, state)
    except CatalogError as error:
        return [Change("endpoint", "refused", issue.message) for issue in error.issues], []
    except FlowError as error:
        return [], [f"the columns are not planned, because the connector has an error: {error.message}"]
    changes = []
    for binding in prepared.bindings:
        text = state.fingerprints.get(binding.spec.input.state_key) if state else None
        if text is None:
            continue
        was, now = StoredParts.from_text(text).fields, binding.fields.values
        for name in now:
            if name not in was:
                meaning = "the column is added; a row gets a value with the next document of its key"
                changes.append(Change(f"{binding.spec.name}: field {name}", "endpoint", meaning, None, "added"))
        there = {projection.field for projection in binding.spec.collection.projections}
        for name in was:
            if name not in now and name in there:
                meaning = "the column stays, and is no longer written"
                changes.append(Change(f"{binding.spec.name}: field {name}", "endpoint", meaning, "stored", None))
    if action:
        lines = tuple(f"+{line}" for line in action.splitlines())
        changes.append(Change("endpoint", "endpoint", "the next run prepares the endpoint", diff=lines))
    return changes, []
