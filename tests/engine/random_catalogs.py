"""Random catalogs, and random histories to derive from.

Every catalog keeps to what law L1 asks of it: a lambda uses state of its own shuffle key only. Within that it draws on
all there is: delays, selectors, bounds in time, every kind of shuffle, chains, self-reads and cycles, chance, and every
way to reduce. A catalog is JSON, which is YAML, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from random_modules import module_of

from derive.document.clock import format_rfc3339

BASE = 1_700_000_000_000_000
SECOND = 1_000_000
SOURCE = "t/source"
TABLE, VIEW = "sql/public/items", "sql/public/sums"
RELATIONS = (TABLE, VIEW)

_ROOT = {
    "schema": {
        "type": "object",
        "required": ["id", "k", "p", "v", "at"],
        "properties": {
            "id": {"type": "integer"},
            "k": {"type": "string"},
            "j": {"type": ["string", "null"], "default": "?"},
            "n": {"type": "object", "properties": {"a": {"type": ["integer", "null"], "default": 7}}},
            "p": {"type": ["string", "null"]},
            "v": {"type": "number"},
            "at": {"type": "string"},
        },
    },
    "key": ["/id"],
    "projections": {"p": {"location": "/p", "partition": True}},
}


@dataclass(frozen=True)
class Readable:
    """A collection that a transform may read: it has `k` and `v`, and perhaps a logical partition."""

    name: str
    partition: str | None = None
    values: tuple[Any, ...] = ()


ROOT = Readable(SOURCE, "p", ("x", "y", None))
ITEMS = Readable(TABLE)
"""A table of SQL, whose rows are inserted and deleted."""
SUMS = Readable(VIEW)
"""A materialized view of SQL."""
_TABLE = {
    "schema": {
        "type": "object",
        "required": ["id", "k", "v"],
        "properties": {
            "id": {"type": "integer"},
            "k": {"type": "string"},
            "v": {"type": "number"},
            "_meta": {"type": "object", "properties": {"op": {"type": "string"}}},
        },
        "if": {
            "required": ["_meta"],
            "properties": {"_meta": {"required": ["op"], "properties": {"op": {"const": "d"}}}},
        },
        "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}},
        "else": {"reduce": {"strategy": "lastWriteWins"}},
    },
    "key": ["/id"],
}


@dataclass(frozen=True)
class Reduction:
    """How a derived collection reduces, and what a lambda selects for it (`K`, `V` and `W` are replaced)."""

    properties: dict[str, Any]
    columns: str = "K AS k, V AS v, W AS w"
    strategy: dict[str, Any] | None = None
    rest: dict[str, Any] | None = None

    def schema(self) -> dict[str, Any]:
        base: dict[str, Any] = {"k": {"type": "string"}, "v": {"type": "number"}, "w": {}, "b": {"type": "integer"}}
        found = {"type": "object", "required": ["k", "v"], "properties": base | self.properties}
        return found | ({"reduce": self.strategy} if self.strategy else {}) | (self.rest or {})

    def select(self, k: str, v: str, w: str = "NULL", partition: bool = False) -> str:
        columns = self.columns.replace("K", k).replace("V", v).replace("W", w)
        if not partition:
            return columns
        b = f"CAST({v} AS INTEGER) % 2"
        return (
            columns.replace("json_object(", f"json_object('b', {b}, ", 1)
            if "json" in columns
            else f"{columns}, {b} AS b"
        )


_MERGE = {"strategy": "merge"}
_SUM = {"v": {"type": "number", "reduce": {"strategy": "sum"}}}
_SUMS = {"v": {"type": "number"}, "n": {"type": "integer", "reduce": {"strategy": "sum"}}}
_ITEM = {"type": "object", "reduce": _MERGE, "properties": _SUMS}
REDUCTIONS = {
    "last": Reduction({}),
    "sum": Reduction(_SUM, strategy=_MERGE),
    "extremes": Reduction(
        {"v": {"type": "number", "reduce": {"strategy": "maximize"}}, "w": {"reduce": {"strategy": "firstWriteWins"}}},
        strategy=_MERGE,
    ),
    "separate": Reduction({}, strategy={"strategy": "lastWriteWins", "associative": False}),
    "append": Reduction(
        {"log": {"type": "array", "reduce": {"strategy": "append"}}},
        "json_object('k', K, 'v', V, 'log', json_array(V, W)) AS json",
        _MERGE,
    ),
    "set": Reduction(
        {"tags": {"type": "object", "reduce": {"strategy": "set"}}},
        "json_object('k', K, 'v', V, 'tags',"
        " json_object(iif(V > 5, 'remove', 'add'), json_array(CAST(V AS INTEGER) % 4))) AS json",
        _MERGE,
    ),
    "least": Reduction(
        {"low": {"type": "object", "reduce": {"strategy": "minimize", "key": ["/v"]}, "properties": _SUMS}},
        "json_object('k', K, 'v', V, 'low', json_object('v', V, 'n', 1)) AS json",
        _MERGE,
    ),
    "items": Reduction(
        {"all": {"type": "array", "reduce": {"strategy": "merge", "key": ["/v"]}, "items": _ITEM}},
        "json_object('k', K, 'v', V, 'all', json_array(json_object('v', V, 'n', 1))) AS json",
        _MERGE,
    ),
    "deleted": Reduction(
        {"gone": {"type": "integer"}, **_SUM},
        "json_object('k', K, 'v', V, 'gone', V > 5) AS json",
        rest={
            "if": {"properties": {"gone": {"const": 1}}, "required": ["gone"]},
            "then": {"reduce": {"strategy": "merge", "delete": True}},
            "else": {"reduce": _MERGE},
        },
    ),
    "conditional": Reduction(
        {"reset": {"type": "integer"}},
        "json_object('k', K, 'v', V, 'reset', V > 5) AS json",
        rest={
            "if": {"properties": {"reset": {"const": 1}}},
            "then": {"reduce": {"strategy": "lastWriteWins"}},
            "else": {"reduce": _MERGE, "properties": _SUM},
        },
    ),
}

_CHANCE = "datetime('now') || CURRENT_TIMESTAMP || hex(randomblob(2)) || random() % 1000"
_BROKEN = "json_extract(iif($v = 7.75, '{', '{}'), '$')"
_BY_KEY = [
    {"key": ["/k"]},
    {"lambda": "SELECT $k AS k;"},
    # A shuffle may be coarser than the state: all of a key still comes to one shard.
    {"lambda": "SELECT upper(substr($k, 1, 1));"},
]


class Catalog:
    """A catalog being drawn.

    Attributes:
        priorities: transforms may have differing priorities.
        wide: transforms may read a table, and put documents aside.
        readable: what a transform may read so far.
    """

    def __init__(self, draw: st.DrawFn, *, priorities: bool, wide: bool = False) -> None:
        self.draw = draw
        self.priorities = priorities
        self.wide = wide
        self.readable = [ROOT, ITEMS, SUMS] if wide else [ROOT]
        self.collections: dict[str, Any] = {SOURCE: _ROOT} | (dict.fromkeys(RELATIONS, _TABLE) if wide else {})

    def text(self) -> str:
        return json.dumps({"collections": self.collections})

    def pick(self) -> Readable:
        # What was derived last is read most: chains are where backfill and live could differ.
        return self.draw(st.sampled_from([*self.readable, self.readable[-1]]))

    def transform(
        self, name: str, source: Readable, shuffle: Any, sql: str, delays: tuple[str, ...] = ("",)
    ) -> dict[str, Any]:
        draw = self.draw
        reference: dict[str, Any] = {"name": source.name}
        if source.partition and draw(st.booleans()):
            side = draw(st.sampled_from(["include", "exclude"]))
            values = draw(st.lists(st.sampled_from(source.values), min_size=1, max_size=2, unique=True))
            reference["partitions"] = {side: {source.partition: values}}
        for bound, offsets in (("notBefore", [1, 1_400_000]), ("notAfter", [3_000_000, 20 * SECOND])):
            if draw(st.integers(0, 5)) == 0:
                reference[bound] = format_rfc3339(BASE + draw(st.sampled_from(offsets)))
        found = {"name": name, "source": reference, "shuffle": shuffle, "lambda": sql}
        delay = draw(st.sampled_from(delays))
        if delay:
            found["readDelay"] = delay
        if self.priorities:
            found["priority"] = draw(st.integers(0, 2))
        return found

    def add(self, name: str, reduction: Reduction, migrations: list[str], transforms: list[Any], **more: Any) -> None:
        is_partitioned = more.pop("partition", False)
        derive = {
            "using": more.pop("using", {"sqlite": {"migrations": migrations}}),
            "shards": {"maxTxnDuration": self.draw(st.sampled_from(["500ms", "1s", "2s"]))},
            "transforms": transforms,
        }
        if any("lambda" in each["shuffle"] for each in transforms if isinstance(each["shuffle"], dict)):
            derive["shuffleKeyTypes"] = ["string"]
        self.collections[name] = {"schema": reduction.schema(), "key": ["/k"], "derive": derive} | more
        if is_partitioned:
            self.collections[name] |= {"key": ["/k", "/b"], "projections": {"b": {"location": "/b", "partition": True}}}
            self.collections[name]["schema"]["required"].append("b")
        self.readable.append(Readable(name, "b", (0, 1)) if is_partitioned else Readable(name))


def stateless(catalog: Catalog, name: str) -> None:
    """A filter, which may ask for the time and throw dice."""
    draw = catalog.draw
    reduction = REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))]
    partition = draw(st.booleans())
    chance = draw(st.sampled_from(["NULL", _CHANCE, *([_BROKEN] if catalog.wide else [])]))
    select = reduction.select("$k", "$v", chance, partition)
    sql = f"SELECT {select} WHERE CAST($v AS INTEGER) % {draw(st.integers(1, 3))} = 0;"
    shuffle = draw(st.sampled_from(["any", *_BY_KEY]))
    transforms = [catalog.transform("pick", catalog.pick(), shuffle, sql, ("", "", "3s"))]
    if draw(st.booleans()):
        transforms.append(catalog.transform("too", catalog.pick(), shuffle, sql))
    if chance == _BROKEN:
        for transform in transforms:
            transform["onViolation"] = "quarantine"
    catalog.add(name, reduction, [], transforms, partition=partition)


def keyed(catalog: Catalog, name: str) -> None:
    """Counts per key, and takes back what is older than a delay; publishes under another key, so shards meet."""
    draw = catalog.draw
    reduction = REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))]
    shuffle = draw(st.sampled_from(_BY_KEY))
    delayed = _BY_KEY[0] if shuffle == _BY_KEY[1] else shuffle
    add = (
        "INSERT INTO seen VALUES ($k, $v) ON CONFLICT DO UPDATE SET n = n + $v;"
        f" SELECT {reduction.select('substr($k, 1, 1)', 'n', '$v')} FROM seen WHERE k = $k;"
    )
    taken = reduction.select("'taken'", "n", "$v")
    take = f"UPDATE seen SET n = n - $v WHERE k = $k; SELECT {taken} FROM seen WHERE k = $k;"
    transforms = [
        catalog.transform("add", catalog.pick(), shuffle, add),
        catalog.transform("take", catalog.pick(), delayed, take, ("1s", "3s", "1m", "0s")),
    ]
    catalog.add(name, reduction, ["CREATE TABLE seen (k TEXT PRIMARY KEY, n REAL NOT NULL);"], transforms)


def paired(catalog: Catalog, name: str) -> None:
    """State of a composite key: nested, with a default where it is absent, or null."""
    first = catalog.draw(st.sampled_from(["k", "n/a"]))
    shuffle = {"key": [f"/{first}", "/j"]}
    values = f"ifnull(${first.replace('/', '$')}, 'null'), ifnull($j, 'null')"
    insert = f"INSERT INTO pairs VALUES ({values}) ON CONFLICT DO NOTHING RETURNING $k, $v;"
    delete = f"DELETE FROM pairs WHERE (a, j) = (SELECT {values});"
    transforms = [
        catalog.transform("first", ROOT, shuffle, insert),
        catalog.transform("forget", ROOT, shuffle, delete, ("2s", "1m")),
    ]
    catalog.add(name, REDUCTIONS["sum"], ["CREATE TABLE pairs (a, j, PRIMARY KEY (a, j));"], transforms)


_VISITS = "CREATE TABLE visits (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"
_VISIT = "INSERT INTO visits VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1;"


def circular(catalog: Catalog, name: str, length: int) -> None:
    """Derivations in a circle (or one that reads itself) that pass documents on until they have been halved away."""
    draw = catalog.draw
    reduction = REDUCTIONS[draw(st.sampled_from(["last", "sum", "separate"]))]
    names = [f"{name}{'abc'[place]}" for place in range(length)]
    outside = [catalog.pick() for _ in names]
    last = Readable(names[-1], "b", (0, 1))
    for place, each in enumerate(names):
        before = Readable(names[place - 1], "b", (0, 1)) if place else last
        begin = f"{_VISIT} SELECT {reduction.select('$k', '$v', 'n', partition=True)} FROM visits WHERE k = $k;"
        passed = reduction.select("substr($k || n, 1, 2)", "$v / 2", "n", partition=True)
        on = f"{_VISIT} SELECT {passed} FROM visits WHERE k = $k AND $v > 4;"
        transforms = [catalog.transform("on", before, _BY_KEY[0], on, ("", "", "2s"))]
        if place == 0 or draw(st.booleans()):
            transforms.insert(
                draw(st.integers(0, 1)), catalog.transform("begin", outside[place], _BY_KEY[0], begin, ("", "", "3s"))
            )
        catalog.add(each, reduction, [_VISITS], transforms, partition=True)


def itself(catalog: Catalog, name: str) -> None:
    circular(catalog, name, 1)


def circle(catalog: Catalog, name: str) -> None:
    circular(catalog, name, catalog.draw(st.integers(2, 3)))


def signed(catalog: Catalog, name: str) -> None:
    """Sums of the rows that are there: rows that are taken away, or replaced, are taken back."""
    sign = "iif($_meta$op IS 'd', -1, 1)"
    sql = f"SELECT upper($k) AS k, $v * {sign} AS v;"
    transform = catalog.transform("rows", catalog.draw(st.sampled_from([ITEMS, SUMS])), "any", sql, ("", "", "3s"))
    transform["onSourceReset"] = catalog.draw(st.sampled_from(["follow", "stop"]))
    catalog.add(name, REDUCTIONS["sum"], [], [transform])


def module(catalog: Catalog, name: str) -> None:
    """A module of Python or TypeScript that counts the documents of each key."""
    draw = catalog.draw
    language, reduction = draw(st.sampled_from(["python", "typescript"])), draw(st.sampled_from(["sum", "last"]))
    transforms = [catalog.transform("count", catalog.pick(), _BY_KEY[0], "", ("", "3s"))]
    if draw(st.booleans()):
        transforms.append(catalog.transform("too", catalog.pick(), _BY_KEY[0], ""))
    for transform in transforms:
        del transform["lambda"]
    using = {language: {"module": module_of(language, name, 0)}}
    catalog.add(name, REDUCTIONS[reduction], [], transforms, using=using)


@st.composite
def catalogs(draw: st.DrawFn, *, priorities: bool = False, wide: bool = False, modules: bool = False) -> str:
    """A catalog with one to three parts, each of which may read what those before it derive."""
    catalog = Catalog(draw, priorities=priorities, wide=wide)
    kinds = [stateless, keyed, paired, itself, circle, *([signed] if wide else []), *([module] if modules else [])]
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        kind(catalog, f"t/d{number}")
    return catalog.text()


@st.composite
def cyclic_catalogs(draw: st.DrawFn, *, priorities: bool = False, wide: bool = False) -> str:
    """A catalog with one or two cycles, and perhaps something before, between and behind them."""
    catalog = Catalog(draw, priorities=priorities, wide=wide)
    kinds = draw(st.lists(st.sampled_from([stateless, itself, circle]), max_size=2))
    kinds.insert(draw(st.integers(0, len(kinds))), draw(st.sampled_from([itself, circle])))
    for number, kind in enumerate(kinds):
        kind(catalog, f"t/d{number}")
    return catalog.text()


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, object]]:
    """Documents of the source, with ascending times, some of them equal."""
    clock = BASE
    documents: list[dict[str, object]] = []
    for number in range(draw(st.integers(1, 16))):
        clock += draw(st.sampled_from([0, 1, 1000, 400_000, SECOND, 5 * SECOND]))
        document: dict[str, object] = {
            "id": number,
            "k": draw(st.sampled_from(["a", "b", "ab", "ba", "ü", 'q"\\'])),
            "p": draw(st.sampled_from(ROOT.values)),
            "v": draw(st.sampled_from([1, 2, 0.1, 7.75, 40])),
            "at": format_rfc3339(clock),
        }
        document |= draw(st.sampled_from([{}, {"j": None}, {"j": "x"}, {"j": "?"}]))
        document |= draw(st.sampled_from([{}, {"n": {}}, {"n": {"a": None}}, {"n": {"a": 7}}, {"n": {"a": 1}}]))
        documents.append(document)
    return documents
