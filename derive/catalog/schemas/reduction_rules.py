"""Reductions: each `reduce` annotation must fit what the schema allows at its location, or documents fail one day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from derive.catalog.language.names import is_pointer
from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.catalog.schemas.subschemas import ITEMS, MATCHING, Location, Part, show_location
from derive.document.pointer import parse_pointer
from derive.errors import SchemaError
from derive.reduce.annotation import STRATEGIES, Annotation, parse_annotation
from derive.schema.infer import infer
from derive.schema.projection import project
from derive.schema.shape import ALL, ANYTHING, Shape, intersect, locate
from derive.suggest import suggest

_TERMS = ("add", "intersect", "remove")
_DECIMALS = ("integer", "number")
_NUMBERS = frozenset({"integer", "fractional"})
_CONTAINERS = frozenset({"array", "object"})
_FAR_ITEM = "999999999"
_ITSELF = "an empty pointer, as in 'key: [\"\"]', is the value itself"
_NEEDED = {
    # what the strategy can reduce, how that is told, the code, and whether the schema has to say so
    "sum": (_NUMBERS, "a number", "E412", True),
    "merge": (_CONTAINERS, "an object or an array", "E413", True),
    "set": (frozenset({"object"}), "an object", "E414", True),
    "append": (frozenset({"array", "null"}), "an array", "E418", False),
    "jsonSchemaMerge": (frozenset({"object"}), "an object", "E418", False),
}


def reductions(parts: Iterable[Part]) -> Mapping[Location, list[Located]]:
    """The `reduce` annotations of each location."""
    by_location: dict[Location, list[Located]] = {}
    for part in parts:
        if part.reduction is not None:
            by_location.setdefault(part.location, []).append(part.reduction)
    return by_location


def inspect_reductions(parts: Sequence[Part], shape: Shape, report: Report) -> None:
    """Report annotations that are none, never apply, or cannot reduce what their schema allows.

    Args:
        parts: of the schema.
        shape: what the schema allows.
        report: told of what is found.
    """
    strategies = reductions(parts)
    for part in parts:
        if part.reduction is not None:
            _Inspection(part, part.reduction, report).inspect(shape, strategies)


class _Inspection:
    """One annotation under inspection."""

    def __init__(self, part: Part, at: Located, report: Report) -> None:
        self._part = part
        self._at = at
        self._where = show_location(part.location)
        self._report = report

    def inspect(self, shape: Shape, strategies: Mapping[Location, list[Located]]) -> None:
        annotation = self._parse()
        if annotation is None:
            return
        location = self._part.location
        if location and location[:-1] not in strategies:
            parent = f"'{show_location(location[:-1])}'" if location[1:] else "the root"
            message = (
                f"'{self._where}' has the strategy '{annotation.strategy}', and {parent} above it has none,"
                " so it would never apply"
            )
            self._report.add("E411", message, self._at, "add 'reduce: {strategy: merge}' there")
        pointers = self._pointers(annotation) if annotation.key else []
        allowed, certain = _allowed(self._part, shape)
        if not allowed.types:
            return
        self._inspect_types(annotation.strategy, allowed, certain=certain)
        if annotation.strategy == "set" and certain:
            self._inspect_terms(annotation, allowed)
        for values in _keyed(annotation.strategy, allowed):
            for at in pointers:
                self._inspect_key(at, annotation.strategy, values)

    def _parse(self) -> Annotation | None:
        value = self._at.value
        strategy = value.get("strategy") if isinstance(value, dict) else None
        if not isinstance(strategy, str):
            message = f"'reduce' needs a strategy, and is {value!r}"
            self._report.add("E406", message, self._at, "write 'reduce: {strategy: sum}'")
            return None
        if strategy not in STRATEGIES:
            guess = suggest(strategy, STRATEGIES)
            hint = f"did you mean '{guess}'?" if guess else f"strategies: {', '.join(sorted(STRATEGIES))}"
            self._report.add("E406", f"there is no strategy '{strategy}'", self._at["strategy"], hint)
            return None
        try:
            return parse_annotation(value, f"the reduction of '{self._where}'")
        except SchemaError as exc:
            self._report.add("E406", exc.message, self._at, exc.hint)
            return None

    def _inspect_types(self, strategy: str, allowed: Shape, *, certain: bool) -> None:
        if strategy not in _NEEDED:
            return
        types, told, code, always = _NEEDED[strategy]
        if strategy == "sum" and allowed.format in _DECIMALS:
            types |= {"string"}
        unfit = allowed.types - types
        wrong = bool(unfit) and (always or allowed.types != ALL) if certain else unfit == allowed.types
        if wrong:
            message = f"'{strategy}' needs {told} at '{self._where}', and the schema allows {_told(allowed)}"
            self._report.add(code, message, self._at["strategy"])

    def _inspect_terms(self, annotation: Annotation, allowed: Shape) -> None:
        at = self._at["strategy"]
        for name in sorted(set(allowed.properties) - set(_TERMS)):
            message = f"'set' at '{self._where}' knows the properties 'add', 'intersect' and 'remove', and not '{name}'"
            self._report.add("E415", message, at)
        for name in _TERMS:
            term = allowed.member(name)
            if term is None or term.types == ALL:
                continue
            where = f"{self._where}/{name}"
            if term.types - _CONTAINERS:
                message = f"'set' needs an array or an object at '{where}', and the schema allows {_told(term)}"
                self._report.add("E414", message, at)
                return  # which all three are, if one schema is for all of them
            if term.types == {"array"} and not annotation.key:
                message = f"'set' at '{self._where}' needs a key, as '{where}' is an array"
                self._report.add("E419", message, at, f"{_ITSELF}: right for strings and numbers")
                return

    def _pointers(self, annotation: Annotation) -> list[Located]:
        """The pointers of the annotation's key that are any."""
        pointers = []
        for at in self._at["key"].elements():
            if is_pointer(at.value):
                pointers.append(at)
                continue
            what = f"the key '{at.value}' of '{annotation.strategy}' at '{self._where}'"
            hint = _ITSELF if at.value == "/" else None
            self._report.add("E419", f"{what} is no JSON pointer without empty names", at, hint)
        return pointers

    def _inspect_key(self, at: Located, strategy: str, values: Shape) -> None:
        if locate(values, parse_pointer(at.value))[1] != "cannot":
            return
        guess = suggest(at.value, [projection.pointer for projection in project(values, (), {}) if projection.pointer])
        hint = f"did you mean '{guess}'?" if guess else None if values.types & _CONTAINERS else _ITSELF
        what = f"the key '{at.value}' of '{strategy}' at '{self._where}'"
        self._report.add("E419", f"{what} cannot exist there: the schema allows {_told(values)}", at, hint)


def _keyed(strategy: str, allowed: Shape) -> Iterator[Shape]:
    """What the pointers of a strategy's key start from."""
    if strategy in ("maximize", "minimize"):
        yield allowed
        return
    for values in [allowed.member(name) for name in _TERMS] if strategy == "set" else [allowed]:
        if values is not None and "array" in values.types:
            yield values.items or ANYTHING


def _allowed(part: Part, shape: Shape) -> tuple[Shape, bool]:
    """The most that may be where a part applies, and whether all of it may be where its annotation does."""
    typed = "type" in part.at.value
    if any(token.startswith(MATCHING) for token in part.location):
        return infer(part.at.value), typed
    tokens = tuple(_FAR_ITEM if token == ITEMS else token for token in part.location)
    located = locate(shape, tokens)[0]
    return (intersect(infer(part.at.value), located), typed) if part.conditional else (located, True)


def _told(shape: Shape) -> str:
    return ", ".join(sorted(shape.types)) if shape.types != ALL else "anything"
