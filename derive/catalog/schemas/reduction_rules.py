"""Rules for reductions: each `reduce` annotation suits its schema, so that no document fails later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from derive.catalog.language.names import is_pointer
from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.catalog.schemas.subschemas import ITEMS, MATCHING, Location, Subschema, show_location
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
    # strategy: the types it can reduce, their name in messages, the issue code, and true if the schema must name types
    "sum": (_NUMBERS, "a number", "E412", True),
    "merge": (_CONTAINERS, "an object or an array", "E413", True),
    "set": (frozenset({"object"}), "an object", "E414", True),
    "append": (frozenset({"array", "null"}), "an array", "E418", False),
    "jsonSchemaMerge": (frozenset({"object"}), "an object", "E418", False),
}


def annotations_by_location(subschemas: Iterable[Subschema]) -> Mapping[Location, list[Located]]:
    """Return the `reduce` annotations by location."""
    by_location: dict[Location, list[Located]] = {}
    for subschema in subschemas:
        if subschema.reduction is not None:
            by_location.setdefault(subschema.location, []).append(subschema.reduction)
    return by_location


def check_reductions(subschemas: Sequence[Subschema], shape: Shape, report: Report) -> None:
    """Report annotations that are invalid, never apply, or contradict their schema.

    Args:
        subschemas: subschemas of the schema.
        shape: shape of the schema.
        report: report for issues.
    """
    annotations = annotations_by_location(subschemas)
    for subschema in subschemas:
        if subschema.reduction is not None:
            _AnnotationCheck(subschema, subschema.reduction, report).check(shape, annotations)


class _AnnotationCheck:
    """The checks of one annotation."""

    def __init__(self, subschema: Subschema, at: Located, report: Report) -> None:
        self._part = subschema
        self._at = at
        self._where = show_location(subschema.location)
        self._report = report

    def check(self, shape: Shape, annotations: Mapping[Location, list[Located]]) -> None:
        annotation = self._parse()
        if annotation is None:
            return
        location = self._part.location
        if location and location[:-1] not in annotations:
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
        self._check_types(annotation.strategy, allowed, certain=certain)
        if annotation.strategy == "set" and certain:
            self._check_terms(annotation, allowed)
        for values in _keyed(annotation.strategy, allowed):
            for at in pointers:
                self._check_key(at, annotation.strategy, values)

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

    def _check_types(self, strategy: str, allowed: Shape, *, certain: bool) -> None:
        if strategy not in _NEEDED:
            return
        types, told, code, always = _NEEDED[strategy]
        if strategy == "sum" and allowed.format in _DECIMALS:
            types |= {"string"}
        unfit = allowed.types - types
        wrong = bool(unfit) and (always or allowed.types != ALL) if certain else unfit == allowed.types
        if wrong:
            message = f"'{strategy}' needs {told} at '{self._where}', and the schema allows {_show_types(allowed)}"
            self._report.add(code, message, self._at["strategy"])

    def _check_terms(self, annotation: Annotation, allowed: Shape) -> None:
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
                message = f"'set' needs an array or an object at '{where}', and the schema allows {_show_types(term)}"
                self._report.add("E414", message, at)
                return  # all three terms share one type, if they share one schema
            if term.types == {"array"} and not annotation.key:
                message = f"'set' at '{self._where}' needs a key, as '{where}' is an array"
                self._report.add("E419", message, at, f"{_ITSELF}: right for strings and numbers")
                return

    def _pointers(self, annotation: Annotation) -> list[Located]:
        """Return the pointers of the annotation's key; invalid ones are reported."""
        pointers = []
        for at in self._at["key"].elements():
            if is_pointer(at.value):
                pointers.append(at)
                continue
            subject = f"the key '{at.value}' of '{annotation.strategy}' at '{self._where}'"
            hint = _ITSELF if at.value == "/" else None
            self._report.add("E419", f"{subject} is no JSON pointer without empty names", at, hint)
        return pointers

    def _check_key(self, at: Located, strategy: str, values: Shape) -> None:
        if locate(values, parse_pointer(at.value))[1] != "cannot":
            return
        guess = suggest(at.value, [projection.pointer for projection in project(values, (), {}) if projection.pointer])
        hint = f"did you mean '{guess}'?" if guess else None if values.types & _CONTAINERS else _ITSELF
        subject = f"the key '{at.value}' of '{strategy}' at '{self._where}'"
        self._report.add("E419", f"{subject} cannot exist there: the schema allows {_show_types(values)}", at, hint)


def _keyed(strategy: str, allowed: Shape) -> Iterator[Shape]:
    """Yield the shapes of the values to which a strategy's key pointers apply."""
    if strategy in ("maximize", "minimize"):
        yield allowed
        return
    for values in [allowed.member(name) for name in _TERMS] if strategy == "set" else [allowed]:
        if values is not None and "array" in values.types:
            yield values.items or ANYTHING


def _allowed(subschema: Subschema, shape: Shape) -> tuple[Shape, bool]:
    """Return the shape at a subschema's location, and true if its annotation applies to all values of that shape."""
    typed = "type" in subschema.at.value
    if any(token.startswith(MATCHING) for token in subschema.location):
        return infer(subschema.at.value), typed
    tokens = tuple(_FAR_ITEM if token == ITEMS else token for token in subschema.location)
    located = locate(shape, tokens)[0]
    return (intersect(infer(subschema.at.value), located), typed) if subschema.conditional else (located, True)


def _show_types(shape: Shape) -> str:
    return ", ".join(sorted(shape.types)) if shape.types != ALL else "anything"
