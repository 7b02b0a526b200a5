"""Random edits of random catalogs, one after the other: each is an edit that a person could make, or its undoing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from random_catalogs import BASE, REDUCTIONS, RELATIONS, SECOND, SOURCE
from random_modules import module_of, variant_of

from derive.document.clock import format_rfc3339

Collections = dict[str, Any]


def derived_of(collections: Collections) -> list[str]:
    return sorted(name for name, one in collections.items() if "derive" in one)


def transforms_of(collections: Collections, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = collections[name]["derive"]["transforms"]
    return found


class Edit:
    """A catalog being edited."""

    def __init__(self, draw: st.DrawFn, collections: Collections, number: int) -> None:
        self.draw, self.collections, self.number = draw, collections, number

    def pick(self) -> str:
        return self.draw(st.sampled_from(derived_of(self.collections)))

    def transform(self) -> dict[str, Any]:
        return self.draw(st.sampled_from(transforms_of(self.collections, self.pick())))

    def sources(self) -> list[str]:
        return sorted(self.collections)


def edit_lambda(edit: Edit) -> None:
    """The lambda publishes another value, or has another comment; a module is another one."""
    name = edit.pick()
    for language, config in edit.collections[name]["derive"]["using"].items():
        if "module" in config:
            config["module"] = module_of(language, name, variant_of(config["module"]) + 1)
            return
    one = edit.draw(st.sampled_from(transforms_of(edit.collections, name)))
    before = one["lambda"]
    one["lambda"] = before.replace("$v AS v", "$v + 1 AS v", 1)
    if one["lambda"] == before:
        one["lambda"] = before + f" -- {edit.number}"


def rename_transform(edit: Edit) -> None:
    one = edit.transform()
    if edit.draw(st.booleans()):
        one["formerly"] = one["name"]
    one["name"] = f"{one['name']}{edit.number}"


def add_transform(edit: Edit) -> None:
    name = edit.pick()
    transforms = transforms_of(edit.collections, name)
    one = copy.deepcopy(edit.draw(st.sampled_from(transforms)))
    one["name"] = f"more{edit.number}"
    one.pop("formerly", None)
    one.pop("backfill", None)
    if edit.draw(st.booleans()):
        one["formerly"] = ""
    if edit.draw(st.booleans()):
        one["source"] = {"name": edit.draw(st.sampled_from(edit.sources()))}
    transforms.insert(edit.draw(st.integers(0, len(transforms))), one)


def remove_transform(edit: Edit) -> None:
    transforms = transforms_of(edit.collections, edit.pick())
    if len(transforms) > 1:
        transforms.remove(edit.draw(st.sampled_from(transforms)))


def reorder(edit: Edit) -> None:
    transforms_of(edit.collections, edit.pick()).reverse()


def raise_backfill(edit: Edit) -> None:
    one = edit.transform()
    one["backfill"] = one.get("backfill", 0) + 1


def lower_backfill(edit: Edit) -> None:
    one = edit.transform()
    one["backfill"] = max(0, one.get("backfill", 0) - 1)


def change_delay(edit: Edit) -> None:
    edit.transform()["readDelay"] = edit.draw(st.sampled_from(["0s", "1s", "3s", "1m"]))


def change_source(edit: Edit) -> None:
    edit.transform()["source"] = {"name": edit.draw(st.sampled_from(edit.sources()))}


def change_bounds(edit: Edit) -> None:
    source = edit.transform()["source"]
    for bound in ("notBefore", "notAfter"):
        source.pop(bound, None)
    if edit.draw(st.booleans()):
        bound = edit.draw(st.sampled_from(["notBefore", "notAfter"]))
        source[bound] = format_rfc3339(BASE + edit.draw(st.sampled_from([0, SECOND, 4 * SECOND, 30 * SECOND])))


def change_selector(edit: Edit) -> None:
    source = edit.transform()["source"]
    if source.pop("partitions", None) is None and source["name"] == SOURCE:
        side = edit.draw(st.sampled_from(["include", "exclude"]))
        source["partitions"] = {side: {"p": [edit.draw(st.sampled_from(["x", "y", None]))]}}


def toggle_disabled(edit: Edit) -> None:
    shards = edit.collections[edit.pick()]["derive"]["shards"]
    shards["disable"] = not shards.get("disable", False)


def change_tick(edit: Edit) -> None:
    edit.collections[edit.pick()]["derive"]["shards"]["maxTxnDuration"] = edit.draw(
        st.sampled_from(["500ms", "1s", "2s"])
    )


def toggle_quarantine(edit: Edit) -> None:
    one = edit.transform()
    one["onViolation"] = edit.draw(st.sampled_from(["quarantine", "stop"]))


def toggle_follow(edit: Edit) -> None:
    one = edit.transform()
    one["onSourceReset"] = edit.draw(st.sampled_from(["follow", "stop"]))


def change_reduction(edit: Edit) -> None:
    """Only the annotations: the lambda publishes what it published."""
    schema = edit.collections[edit.pick()]["schema"]
    if edit.draw(st.booleans()):
        schema["properties"]["v"] = {"type": "number", "reduce": {"strategy": "sum"}}
        schema["reduce"] = {"strategy": "merge"}
    else:
        schema["properties"]["v"] = {"type": "number"}


def add_property(edit: Edit) -> None:
    schema = edit.collections[edit.pick()]["schema"]
    schema["properties"][f"x{edit.number}"] = {"type": ["string", "null"]}


def remove_derivation(edit: Edit) -> None:
    """Readers of what is removed read what was ingested instead."""
    names = derived_of(edit.collections)
    if len(names) < 2:
        return
    gone = edit.draw(st.sampled_from(names))
    del edit.collections[gone]
    _point(edit.collections, gone, SOURCE)


def stop_deriving(edit: Edit) -> None:
    """The documents of a derivation stay, and readers read them."""
    names = derived_of(edit.collections)
    if len(names) > 1:
        del edit.collections[edit.draw(st.sampled_from(names))]["derive"]


def derive_again(edit: Edit) -> None:
    """A collection that is not derived, or no more, is derived."""
    names = sorted({*edit.collections} - {SOURCE, *RELATIONS, *derived_of(edit.collections)})
    if names:
        name = edit.draw(st.sampled_from(names))
        sql = "SELECT $k, $v, CAST($v AS INTEGER) % 2 AS b;"
        transform = {"name": "again", "source": {"name": SOURCE}, "shuffle": "any", "lambda": sql}
        derive = {"using": {"sqlite": {"migrations": []}}, "shards": {}, "transforms": [transform]}
        edit.collections[name]["derive"] = derive


def rename_derivation(edit: Edit) -> None:
    former = edit.pick()
    name = f"{former}r{edit.number}"
    edit.collections[name] = edit.collections.pop(former)
    _point(edit.collections, former, name)


def _point(collections: Collections, former: str, name: str) -> None:
    for derived in derived_of(collections):
        for one in transforms_of(collections, derived):
            if one["source"]["name"] == former:
                one["source"]["name"] = name
                if name == SOURCE:
                    one["source"].pop("partitions", None)


def add_migration(edit: Edit) -> None:
    using = edit.collections[edit.pick()]["derive"]["using"]
    if "sqlite" in using:
        using["sqlite"]["migrations"].append(f"CREATE TABLE more{edit.number} (x);")


def add_derivation(edit: Edit) -> None:
    source = edit.draw(st.sampled_from(edit.sources()))
    reduction = REDUCTIONS[edit.draw(st.sampled_from(["sum", "last", "separate"]))]
    edit.collections[f"t/n{edit.number}"] = {
        "schema": reduction.schema(),
        "key": ["/k"],
        "derive": {
            "using": {"sqlite": {"migrations": []}},
            "shards": {"maxTxnDuration": "1s"},
            "transforms": [
                {
                    "name": "copy",
                    "source": {"name": source},
                    "shuffle": "any",
                    "lambda": f"SELECT {reduction.select('$k', '$v')};",
                }
            ],
        },
    }


EDITS: dict[str, Callable[[Edit], None]] = {
    one.__name__: one
    for one in (
        edit_lambda,
        rename_transform,
        add_transform,
        remove_transform,
        reorder,
        raise_backfill,
        lower_backfill,
        change_delay,
        change_source,
        change_bounds,
        change_selector,
        toggle_disabled,
        change_tick,
        toggle_quarantine,
        toggle_follow,
        change_reduction,
        add_property,
        remove_derivation,
        stop_deriving,
        derive_again,
        rename_derivation,
        add_migration,
        add_derivation,
    )
}


@st.composite
def edited(draw: st.DrawFn, text: str, number: int) -> tuple[str, list[str]]:
    """An edited catalog, and the names of its edits."""
    catalog = json.loads(text)
    whats = draw(st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=2))
    for place, what in enumerate(whats):
        EDITS[what](Edit(draw, catalog["collections"], 10 * number + place))
    return json.dumps(catalog), whats
