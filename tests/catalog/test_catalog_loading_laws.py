"""The JSON Schema and the loader agree: what one accepts the other loads, and what one refuses the other names.

The judge is another validator than the loader's own, in another language.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from derive.catalog import load
from derive.catalog.language.json_schema import ADDRESS, DURATION, POINTER, STEP_TIME, TICK, TIME, TOKEN, catalog_schema
from derive.catalog.loading.loader import Loader
from derive.document.clock import parse_duration
from derive.errors import CatalogError

SCHEMA = catalog_schema()
TEXTS = {
    POINTER["pattern"]: ["/id", "/a~1b"],
    TIME["pattern"]: ["2023-01-01T00:00:00Z", "2024-02-29T23:59:59.5+01:00"],
    DURATION["pattern"]: ["15m", "1 hour", "0s"],
    TICK["pattern"]: ["1h 30s"],
    STEP_TIME["pattern"]: ["2024-02-29T23:59:59Z", "+20m", "+1h 30s"],
    r"^[A-Za-z_][A-Za-z0-9_]*$": ["TOKEN"],
    ADDRESS["pattern"]: ["localhost:5000", "[::1]:80"],
    f"^{TOKEN}$": ["one", "Two-2", "drei.3"],
}
JUDGE = Draft202012Validator(SCHEMA)
# None of these strings names a file: each has a space in it.
GARBAGE: list[Any] = [None, True, 5, -1, 1.5, 2**40, "x y", " ", "a b/c", [], {}, [5], [None], {"k": 1}, [{}], ["/id"], [["x y"]], "any ",
           "15 m", {"x-note": 1}, {"name": "a b"}, {"schema": {}}, [{"ingest": {}, "verify": {}}], {"sqlite": {}, "typescript": {}}]  # fmt: skip


def resolve(schema: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def values(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that a part of the schema describes, most of them accepted by it."""
    schema = resolve(schema)
    if schema.get("title") == "Schema":
        return st.just({"type": "object", "properties": {"id": {"type": "integer"}}})
    if "if" in schema and "properties" not in schema:
        return st.one_of(values(schema["then"], depth), values(schema["else"], depth))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    types = schema.get("type", ["string", "object", "array", "boolean"])
    types = [types] if isinstance(types, str) else [each for each in types if each != "null"]
    return st.one_of([of_type(each, schema, depth) for each in types])


def of_type(kind: str, schema: Any, depth: int) -> st.SearchStrategy[Any]:
    if kind == "object":
        return objects(schema, depth)
    if kind == "array":
        items = st.lists(
            values(schema.get("items", {"type": "integer"}), depth + 1), min_size=schema.get("minItems", 0), max_size=2
        )
        return (
            st.tuples(items, st.just(["mod.ts"])).map(lambda each: [*each[0], *each[1]])
            if "contains" in schema
            else items
        )
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(0, 9)
    return st.sampled_from(TEXTS.get(schema.get("pattern"), ["SELECT 1;", "a text"]))


@st.composite
def objects(draw: st.DrawFn, schema: Any, depth: int) -> dict[str, Any]:
    known = schema.get("properties", {})
    if schema.get("minProperties"):
        names = [draw(st.sampled_from(sorted(known)))]
    elif "address" in known:
        names = draw(st.sampled_from([choice["required"] for choice in schema["oneOf"]]))
    else:
        required = schema.get("required", [])
        others = [each for each in sorted(known) if each not in required and each != "import"]
        names = [
            *required,
            *draw(st.lists(st.sampled_from(others), unique=True, max_size=4) if others else st.just([])),
        ]
    if "schema" in known:
        chosen = {"schema"} if draw(st.booleans()) else {"readSchema", "writeSchema"}
        names = [each for each in names if each not in ("schema", "readSchema", "writeSchema")] + sorted(chosen)
    if "files" in known:
        names = sorted({*names, draw(st.sampled_from(["module", "files"]))})
    found = {name: draw(values(known[name], depth + 1)) for name in names}
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        found |= draw(st.dictionaries(st.sampled_from(["a/b", "c/d", "e"]), values(extra, depth + 1), max_size=2))
    if schema.get("patternProperties") and draw(st.integers(0, 9)) == 0:
        found["x-note"] = "anything"
    return found


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    # What a schema holds is for building to judge.
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        if name not in ("schema", "readSchema", "writeSchema"):
            yield from paths(child, (*path, name))


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A catalog, most often with one thing put in its place, taken away or misspelt."""
    catalog = copy.deepcopy(draw(values(SCHEMA)))
    path = draw(st.sampled_from([each for each in paths(catalog) if each] or [()]))
    if not path:
        return draw(st.sampled_from([catalog, *GARBAGE]))
    parent = catalog
    for name in path[:-1]:
        parent = parent[name]
    how = draw(st.sampled_from(["leave", "replace", "remove", "misspell"]))
    if how == "replace":
        parent[path[-1]] = draw(st.sampled_from(GARBAGE))
    elif how == "remove":
        del parent[path[-1]]
    elif how == "misspell" and isinstance(parent, dict):
        parent[f"{path[-1]}s"] = parent.pop(path[-1])
    return catalog


def written(folder: Any, catalog: Any) -> Path:
    path: Path = folder.getbasetemp() / "law.flow.yaml"
    path.write_text(json.dumps(catalog))
    for name in ("SELECT 1;", "a text", "mod.ts"):  # documents may be in a file of this name, and so may modules
        (folder.getbasetemp() / name).write_text("[]")
    return path


@settings(max_examples=examples(100))
@given(catalog=values(SCHEMA))
def test_what_the_schema_accepts_is_loaded_whole(tmp_path_factory: pytest.TempPathFactory, catalog: Any) -> None:
    assert [each.message for each in JUDGE.iter_errors(catalog)] == []

    loader = Loader()
    found = loader.load(written(tmp_path_factory, catalog))

    assert loader.report.issues == []
    assert set(found.collections) == set(catalog.get("collections", {}))
    assert set(found.tests) == set(catalog.get("tests", {}))
    assert set(found.captures) == set(catalog.get("captures", {}))
    assert set(found.materializations) == set(catalog.get("materializations", {}))


@settings(max_examples=examples(150))
@given(catalog=spoiled())
def test_a_spoiled_catalog_is_refused_by_both_or_by_neither(
    tmp_path_factory: pytest.TempPathFactory, catalog: Any
) -> None:
    path = written(tmp_path_factory, catalog)

    if JUDGE.is_valid(catalog) or catalog is None:
        loader = Loader()
        loader.load(path)
        assert [each for each in loader.report.issues if each.code != "E003"] == []
    else:
        with pytest.raises(CatalogError) as caught:
            load(path)
        assert all(each.position.line == 1 for each in caught.value.issues)


@given(
    st.lists(
        st.one_of(
            st.integers(0, 99).map(str),
            st.sampled_from(
                ["h", "hour", "m", "ms", "sec", "s", "wks", "days", "us", "usecs", " ", "\n", "x", ".", "-"]
            ),
        )
    ).map("".join)
)
def test_the_pattern_of_durations_is_their_grammar(text: str) -> None:
    try:
        micros = parse_duration(text)
    except ValueError:
        micros = -1

    assert Draft202012Validator(DURATION).is_valid(text) == (micros >= 0)
    assert Draft202012Validator(TICK).is_valid(text) == (micros > 0)


def test_the_schema_is_one_and_explains_all_of_a_catalog() -> None:
    Draft202012Validator.check_schema(SCHEMA)

    def undescribed(schema: Any, path: str) -> Iterator[str]:
        for name, each in schema.get("properties", {}).items():
            if "$ref" not in each and each is not False and "description" not in each:
                yield f"{path}/{name}"
            yield from undescribed(each if isinstance(each, dict) else {}, f"{path}/{name}")
        for name in ("items", "then"):
            if name in schema:
                yield from undescribed(schema[name], f"{path}/{name}")

    parts = {"": SCHEMA, **SCHEMA["$defs"]}
    assert [each for name, part in parts.items() for each in undescribed(part, name)] == []
    assert all("title" in part and "description" in part for part in parts.values())
