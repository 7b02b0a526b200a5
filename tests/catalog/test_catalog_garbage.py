"""Whatever stands in a catalog, loading it ends with a catalog or with issues that say where; never with a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.errors import CatalogError

SOURCE = {
    "schema": {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "who": {"type": "string", "default": "x"},
            "list": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
            "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/named"}]},
        },
        "$defs": {"named": {"type": "object", "reduce": {"strategy": "merge"}}},
        "patternProperties": {"^x": {"type": "string"}},
        "additionalProperties": {"type": "string"},
        "allOf": [{"title": "t"}],
        "if": True,
        "then": {},
        "else": {},
        "reduce": {"strategy": "merge"},
    },
    "key": ["/id"],
    "projections": {"part": {"location": "/who", "partition": True}, "again": "/who"},
}
SELECTED = {
    "name": "a/source",
    "partitions": {"include": {"part": ["x"]}, "exclude": {"part": ["y"]}},
    "notBefore": "2023-01-01T00:00:00Z",
    "notAfter": "2024-01-01T00:00:00Z",
}
KEYED = {
    "name": "keyed",
    "source": SELECTED,
    "shuffle": {"key": ["/id"]},
    "lambda": "SELECT $id;",
    "priority": 1,
    "readDelay": "5m",
    "disable": False,
    "backfill": 0,
}
SHUFFLED = {"name": "by-lambda", "source": "a/source", "shuffle": {"lambda": "SELECT $id;"}, "lambda": "SELECT 1;"}
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}
CATALOG: dict[str, Any] = {
    "import": [],
    "collections": {
        "a/source": SOURCE,
        "a/sql": {
            "writeSchema": SCHEMA,
            "readSchema": SCHEMA,
            "key": ["/id"],
            "derive": {
                "using": {"sqlite": {"migrations": ["CREATE TABLE t(a);"]}},
                "shuffleKeyTypes": ["integer"],
                "shards": {"disable": False, "maxTxnDuration": "2s"},
                "transforms": [KEYED, SHUFFLED],
            },
        },
    },
    "tests": {
        "t/list": [
            {"ingest": {"collection": "a/source", "documents": [{"id": 1}], "description": "one"}},
            {"verify": {"collection": {"name": "a/source", "partitions": {}}, "documents": [{"id": 1}, {"id": 2}]}},
        ],
        "t/steps": {"description": "d", "steps": [{"verify": {"collection": "a/source", "documents": []}}]},
    },
}
GARBAGE: list[Any] = [None, True, 5, -1, 1.5, "", "x", "x y", [], {}, [5], [None], {"k": 1}, [{}], ["/id"], [["/id"]]]


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from paths(child, (*path, name))


def with_garbage(path: tuple[str | int, ...], garbage: Any) -> Any:
    catalog = copy.deepcopy(CATALOG)
    if not path:
        return garbage
    parent: Any = catalog
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = garbage
    return catalog


def test_catalog_is_valid_before_it_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(json.dumps(CATALOG))

    assert sorted(load(tmp_path / "flow.yaml").collections) == ["a/source", "a/sql"]


@settings(max_examples=examples(200), deadline=None)
@given(path=st.sampled_from(list(paths(CATALOG))), garbage=st.sampled_from(GARBAGE))
def test_damaged_catalogs_give_issues_and_no_exceptions(
    tmp_path_factory: Any, path: tuple[str | int, ...], garbage: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "garbage.yaml"
    file.write_text(json.dumps(with_garbage(path, garbage)))

    try:
        load(file)
    except CatalogError as exc:
        assert exc.issues  # noqa: PT017 (either outcome is right)
