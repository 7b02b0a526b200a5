"""The structure of a catalog file: syntax of names, known settings, and settings without effect.

Every fault gets a message of this project, its line and column, and a suggestion. The check also returns the paths of
values that cannot be loaded. So the other values are loaded, and one run reports all faults.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from derive.catalog.language.json_schema import LINE, NO_EFFECT, POINTER, Schema, catalog_schema
from derive.catalog.language.yaml import Located, Path, YamlFile
from derive.errors import Issue, suggest, suggest_misspelt

_TOKEN = r"(?:[^\W_]|[-_.])+"
_NAME = re.compile(rf"{_TOKEN}(/{_TOKEN})*")
_TRANSFORM = re.compile(_TOKEN)
_LINE = re.compile(LINE)
_POINTER = re.compile(r"(/([^/~]|~[01])+)*")


def is_name(text: str) -> bool:
    """Return true for a valid collection name: tokens of letters, numbers, `-`, `_`, `.`, separated by slashes."""
    return _NAME.fullmatch(text) is not None


def is_line(text: str) -> bool:
    """Return true for a valid test name: one line without leading or trailing spaces."""
    return _LINE.fullmatch(text) is not None


def is_token(text: str) -> bool:
    """Return true for a valid transform name."""
    return _TRANSFORM.fullmatch(text) is not None


def is_field(text: str) -> bool:
    """Return true for a valid projection name: a JSON pointer without its first slash."""
    return bool(text) and is_pointer(f"/{text}")


def is_pointer(text: str) -> bool:
    """Return true for a JSON pointer without empty tokens."""
    return _POINTER.fullmatch(text) is not None


def fold(name: str) -> str:
    """Return a name in the form for comparison, with case and composition of characters folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold())


def collisions(names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield conflicts between names: `(index, index of the other, relation)`.

    Two names conflict if their folded forms are equal ("collides with"), or if one name is a folder of the other name
    ("is a prohibited prefix of").

    >>> list(collisions(["a/b", "A/B", "a"]))
    [(1, 0, 'collides with'), (2, 0, 'is a prohibited prefix of')]
    """
    folded: dict[str, int] = {}
    forms = [fold(name) for name in names]
    for index, form in enumerate(forms):
        if form in folded:
            yield index, folded[form], "collides with"
        folded.setdefault(form, index)
    for index, form in sorted(zip(folded.values(), folded, strict=True)):
        parts = form.split("/")
        for length in range(1, len(parts)):
            prefix = folded.get("/".join(parts[:length]))
            if prefix is not None:
                yield prefix, index, "is a prohibited prefix of"


_NOT_RUN = "captures"
"""Section for which settings without effect are not reported one by one."""


def settings_without_effect(file: YamlFile) -> list[Issue]:
    """Return notes for settings without effect in a file, except settings that equal the default."""
    notes = _notes(Located(file, (), file.value), _paths_to_notes())
    return list(dict.fromkeys(notes))


_COMBINED = ("allOf", "anyOf", "oneOf")


@cache
def _paths_to_notes() -> Schema:
    """Return the catalog's schema without the parts that lead to no setting without effect, which are most."""
    pruned = _pruned(catalog_schema())
    return {"properties": {name: part for name, part in pruned["properties"].items() if name != _NOT_RUN}}


def _pruned(schema: Schema) -> Schema:
    if "$ref" in schema:
        schema = catalog_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    if NO_EFFECT in schema:
        return schema
    combined = {keyword: [part for part in map(_pruned, schema.get(keyword, ())) if part] for keyword in _COMBINED}
    members = {name: _pruned(member) for name, member in schema.get("properties", {}).items()}
    single = {
        keyword: _pruned(schema[keyword])
        for keyword in ("items", "additionalProperties")
        if isinstance(schema.get(keyword), dict)
    }
    if not any(single.values()):
        members = {name: member for name, member in members.items() if member}
    pruned = {**combined, "properties": members, **single}
    return {keyword: part for keyword, part in pruned.items() if part}


def _notes(at: Located, schema: Schema) -> Iterator[Issue]:
    for keyword in _COMBINED:
        for part in schema.get(keyword, ()):
            yield from _notes(at, part)
    if isinstance(at.value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in at.value:
            part = known.get(name, others)
            if part:
                yield from _note(name, at[name], part) if NO_EFFECT in part else _notes(at[name], part)
    elif isinstance(at.value, list) and "items" in schema:
        for element in at.elements():
            yield from _notes(element, schema["items"])


def _note(name: str, at: Located, schema: Schema) -> Iterator[Issue]:
    if "default" not in schema or at.value != schema["default"]:
        message = f"'{name}' of '{at.path[1]}' has no effect"
        yield Issue("N008", message, at.key_position, schema[NO_EFFECT] or None)


_KINDS = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "integer": "an integer",
    "boolean": "a boolean",
}
_PLAIN = re.compile(r"(/[\w.-]+)+")
"""A location that YAML takes as a text without quotes."""
_LEFT_TO_BUILDING = ("pattern", "minItems", "propertyNames")
_BUILT = ("collections", "materializations", "tests")
_ENTITIES = ("collections", "tests", "captures", "materializations")
_LEAVES = ("tests", "captures", "materializations")
"""Sections to which no other section refers."""
_EXAMPLES = {"resource": "such as 'resource: {table: NAME}'; for files, 'resource: {path: NAME}'"}
"""Hints for missing properties of a materialization or its parts."""
_NEEDED_LATER = ("lambda",)
"""Properties that are optional here, and that a rule of a connector may require."""
_DEPTHS = {
    ("collections", "key"): 3,
    ("collections", "projections"): 3,
    ("collections", "derive", "transforms"): 5,
    ("collections", "derive", "shards"): 4,
    ("collections", "derive", "shuffleKeyTypes"): 4,
    ("materializations", "bindings"): 4,
    ("materializations", "shards"): 3,
    ("tests", "steps"): 4,
}
"""Length of the path of the value that a fault skips, by property names; other faults skip the whole entity."""


def check_structure(file: YamlFile) -> tuple[list[Issue], frozenset[Path]]:
    """Return the issues of a file's structure, and the paths of values that cannot be loaded.

    All other values, except those below a returned path, have the structure that the schema requires.
    """
    faults = list(_validator().iter_errors({} if file.value is None else file.value))
    if not faults:
        return [], frozenset()
    checker = _Checker(file)
    for fault in sorted(faults, key=lambda fault: fault.kind.name != "additionalProperties"):
        checker.report(fault)
    return checker.issues, frozenset(checker.bad)


@cache
def _validator() -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(catalog_schema())


class _Checker:
    def __init__(self, file: YamlFile) -> None:
        self.issues: list[Issue] = []
        self.bad: set[Path] = set()
        self._file = file
        self._guesses: dict[Path, set[str | None]] = {}

    def report(self, fault: Any) -> None:
        """Add the issues of one fault."""
        path, keyword = tuple(fault.instance_path), fault.kind.name
        part, schema = _part(fault.schema_path[:-1])
        at = _locate(self._file, path)
        if keyword == "additionalProperties":
            self._unknown(at, fault.kind.unexpected, part, schema)
            return
        if (keyword in _LEFT_TO_BUILDING and "x-code" not in schema) or ("format" in schema and path[0] in _BUILT):
            return
        self.bad.add(_unit(path))
        if self._is_meant(path, fault, schema):
            return
        if keyword == "required":
            message = f"{_noun(path, part, schema)} needs a property '{fault.kind.property}'"
            hint = _EXAMPLES.get(fault.kind.property) if path[0] == "materializations" else None
            self.issues.append(Issue("E012", message, at.position, hint))
        elif "x-code" in schema:
            position = at.key_position if keyword in ("oneOf", "anyOf") else at.position
            hint = _as_key(at.value) if schema.get("const") == "any" else None
            self.issues.append(Issue(schema["x-code"], _message(at, schema), position, hint))
        else:
            message = f"{_noun(path, part, schema)} must be {_expected(schema)}"
            self.issues.append(Issue("E010", message, at.position, _as_list(at.value, schema)))

    def _unknown(self, at: Located, names: list[str], part: list[str], schema: Schema) -> None:
        known = schema["properties"]
        for name in names:
            guess = suggest(name, known)
            hint = f"did you mean '{guess}'?" if guess else f"known: {', '.join(sorted(known))}"
            message = f"{_noun(at.path, part, schema)} has no property '{name}'"
            self.issues.append(Issue("E011", message, at[name].key_position, hint))
            self._guesses.setdefault(at.path, set()).add(guess)
            if not at.path and guess not in _LEAVES:
                self.bad.add((name,))  # it may define the collections to which the other sections refer
        if not schema.get("patternProperties") or self._lacks_needed(at):
            self.bad.add(_unit(at.path))

    def _lacks_needed(self, at: Located) -> bool:
        """Return true if a property that later rules need exists only under a misspelt name, which was reported."""
        return any(name in self._guesses[at.path] and name not in at.value for name in _NEEDED_LATER)

    def _is_meant(self, path: Path, fault: Any, schema: Schema) -> bool:
        """Return true if a missing property exists under a misspelt name, which has already been reported."""
        guesses = self._guesses.get(path, set())
        if fault.kind.name == "required":
            return fault.kind.property in guesses
        choices = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
        return any(name in guesses for choice in choices for name in choice["required"])


def _as_list(value: Any, schema: Schema) -> str | None:
    """Return the hint for one value in place of a list of such values; None for other faults."""
    is_one = schema.get("type") == "array" and isinstance(value, str) and "\n" not in value
    if is_one and schema["items"].get("format") == POINTER["format"] and _PLAIN.fullmatch(f"/{value}"):
        value = f"/{value}"
    return f"did you mean '[{value}]'?" if is_one else None


def _as_key(shuffle: Any) -> str | None:
    """Return the hint for a shuffle that is one location or a list of locations; None for other faults."""
    if shuffle == "all" or (isinstance(shuffle, str) and suggest_misspelt(shuffle.lower(), ("any",))):
        return "write 'shuffle: any'"
    locations = shuffle if isinstance(shuffle, list) else [shuffle]
    pointers = [f"/{location.removeprefix('/')}" for location in locations if isinstance(location, str)]
    if not pointers or len(pointers) < len(locations) or not all(map(_PLAIN.fullmatch, pointers)):
        return None
    return f"write 'shuffle: {{key: [{', '.join(pointers)}]}}'"


def _part(schema_path: list[Any]) -> tuple[list[str], Schema]:
    """Return the schema that a value failed, and its path."""
    steps = [str(step) for step in schema_path]
    schema: Any = catalog_schema()
    for step in schema_path:
        schema = schema[step]
    return steps, schema


def _locate(file: YamlFile, path: Path) -> Located:
    at = Located(file, (), {} if file.value is None else file.value)
    for step in path:
        at = at[step]
    return at


def _unit(path: Path) -> Path:
    """Return the path of the value to skip because of a fault: the smallest value that the loader can omit."""
    if path[:1] == ("import",) or len(path) <= 2:
        return path[:2]
    names = tuple(str(step) for index, step in enumerate(path) if index != 1 and isinstance(step, str))
    if path[0] == "tests" and isinstance(path[2], int):
        return path[:3]
    for length in range(len(names), 1, -1):
        if names[:length] in _DEPTHS:
            depth = _DEPTHS[names[:length]]
            return path[:depth] if len(path) >= depth else path[:2]
    return path[:2]


def _noun(path: Path, part: list[str], schema: Schema) -> str:
    """Return the name of a value for messages."""
    title = str(schema.get("title", "")).lower()
    an = "an" if title[:1] in tuple("aeiou") else "a"
    if not path:
        return "a catalog"
    if (len(path) == 2 and path[0] in _ENTITIES) or title == "projection":
        return f"{title} '{path[-1]}'"
    if path[-1] == "derive":
        return f"'derive' of '{path[1]}'"
    if isinstance(path[-1], int) or (part[:1] == ["$defs"] and len(part) == 2):
        return f"{an} {title or 'value'}"
    return f"'{path[-1]}'"


def _message(at: Located, schema: Schema) -> str:
    message: str = schema["errorMessage"]
    if schema["x-code"] == "E013":
        return f"'{at.path[-1]}' is {message}: {at.value!r}"
    return message.replace("a collection", f"collection '{at.path[-1]}'", 1) if len(at.path) == 2 else message


def _expected(schema: Schema) -> str:
    """Return the required types or values of a schema, in words."""
    if "enum" in schema:
        return f"one of: {', '.join(schema['enum'])}"
    if "maximum" in schema:
        return f"an integer from {schema['minimum']} to {schema['maximum']}"
    return " or ".join(_type_names(schema["type"]))


def _type_names(types: str | list[str]) -> Iterator[str]:
    for type_name in [types] if isinstance(types, str) else types:
        if type_name != "null":
            yield _KINDS[type_name]
