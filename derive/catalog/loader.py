"""Loading: from the root file, through imports and references, to definitions.

Structure is checked here (kinds of values, unknown and missing properties); meaning is checked in `build`. Every issue
is collected, and what can still be made sense of is loaded all the same, so that one run reports everything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from derive.catalog import model
from derive.catalog.model import (
    CatalogDef,
    CollectionDef,
    DeriveDef,
    Fields,
    SourceDef,
    StepDef,
    TestDef,
    TransformDef,
)
from derive.catalog.resource import Resources, why
from derive.catalog.yaml import Located
from derive.document.clock import parse_duration
from derive.errors import CatalogError, Issue
from derive.position import Position, Script
from derive.protocol.specs import JSON
from derive.schema.index import bundle
from derive.suggest import suggest

_KINDS: dict[type, str] = {dict: "an object", list: "an array", str: "a string", int: "an integer", bool: "a boolean"}
_TICK = 1_000_000


class Loader:
    """Loads a catalog.

    Attributes:
        issues: everything found wrong so far.
        broken: names that are defined, but not well enough to be loaded.
        incomplete: a file could not be loaded, and what it defines is unknown.
    """

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.broken: set[str] = set()
        self.incomplete = False
        self._resources = Resources()
        self._collections: dict[str, CollectionDef] = {}
        self._tests: dict[str, TestDef] = {}

    def load(self, source: Path) -> CatalogDef:
        """All definitions that the root file `source` leads to."""
        pending = [(str(source.absolute()), Position(str(source)))]
        seen = set()
        while pending:
            url, referrer = pending.pop(0)
            if url in seen:
                continue
            seen.add(url)
            try:
                file = self._resources.document(url)
            except OSError as exc:
                self.issues.append(Issue("E003", f"cannot load {Resources.show(url)}: {why(exc)}", referrer))
                self.incomplete = True
                continue
            except CatalogError as exc:
                self.issues += exc.issues
                self.incomplete = True
                continue
            root = Located(file, (), file.value if file.value is not None else {})
            pending += self._file(root, url)
        return CatalogDef(str(source), self._collections, self._tests)

    # Structure

    def issue(self, code: str, message: str, position: Position, hint: str | None = None) -> None:
        """Note something wrong."""
        self.issues.append(Issue(code, message, position, hint))

    def _is(self, at: Located, kind: type, what: str) -> bool:
        good = isinstance(at.value, kind) and not (kind is int and isinstance(at.value, bool))
        if not good:
            self.issue("E010", f"{what} must be {_KINDS[kind]}", at.position)
        return good

    def _fields(self, at: Located, fields: Fields, what: str) -> dict[str, Located] | None:
        """The properties of an object; None if it is not one or lacks what it must have."""
        if not self._is(at, dict, what):
            return None
        complete = True
        for name, value in at.items():
            if name not in fields.known and not name.startswith("x-"):
                guess = suggest(name, fields.known)
                hint = f"did you mean '{guess}'?" if guess else f"it has: {', '.join(sorted(fields.known))}"
                self.issue("E011", f"{what} has no property '{name}'", value.key_position, hint)
                complete = complete and guess not in fields.required
        for name in sorted(fields.required):
            if name not in at.value:
                guesses = [suggest(each, [name]) for each in at.value if each not in fields.known]
                if name not in guesses:
                    self.issue("E012", f"{what} needs a property '{name}'", at.position)
                complete = False
        return {name: each for name, each in at.items() if name in fields.known} if complete else None

    def _one_of(self, at: Located, fields: Fields, what: str, issue: tuple[str, str]) -> tuple[str, Located] | None:
        """The only property of an object that must have exactly one; `issue` is the code and message if not."""
        found = self._fields(at, fields, what)
        if found is not None and len(found) == len(at.value) == 1:
            return next(iter(found.items()))
        if found is not None and len(at.value) != 1:
            self.issue(*issue, at.position)
        return None

    def _script(self, at: Located, base: str, what: str) -> Script | None:
        """Code that is written inline or, if the string has no white space, in the file it names."""
        if not self._is(at, str, what):
            return None
        text: str = at.value
        if any(each.isspace() for each in text) or not text:
            return at.script()
        url = Resources.resolve(base, text)
        try:
            content = self._resources.text(url)
        except OSError as exc:
            self.issue(
                "E003",
                f"cannot load {what} {Resources.show(url)}: {why(exc)}",
                at.position,
                "a string without any space is taken for the name of a file",
            )
            return None
        return Script(content, content, Position(Resources.show(url)))

    def _micros(self, at: Located, what: str) -> int | None:
        if not self._is(at, str, what):
            return None
        try:
            return parse_duration(at.value)
        except ValueError as exc:
            self.issue("E013", f"{what} is {exc}", at.position)
            return None

    # Files

    def _file(self, root: Located, url: str) -> list[tuple[str, Position]]:
        """Take in one file; returns what it imports."""
        fields = self._fields(root, model.CATALOG, "a catalog")
        imports: list[tuple[str, Position]] = []
        if fields is None:
            self.incomplete = True
            return imports
        if "import" in fields and self._is(fields["import"], list, "'import'"):
            for each in fields["import"].elements():
                if self._is(each, str, "an import"):
                    imports.append((Resources.resolve(url, each.value), each.position))
        self._entries(fields.get("collections"), self._collections, "collection", lambda at: self._collection(at, url))
        self._entries(fields.get("tests"), self._tests, "test", lambda at: self._test(at, url))
        return imports

    def _entries(self, at: Located | None, into: dict[str, Any], what: str, load: Callable[[Located], Any]) -> None:
        if at is None or at.value is None or not self._is(at, dict, f"'{what}s'"):
            return
        for name, each in at.items():
            if name in into:
                other = into[name].at.key_position
                self.issue("E102", f"{what} '{name}' is defined a second time; first at {other}", each.key_position)
                continue
            loaded = load(each)
            if loaded is None:
                self.broken.add(name)
            else:
                into[name] = loaded

    # Collections

    def _collection(self, at: Located, url: str) -> CollectionDef | None:
        name = str(at.path[-1])
        fields = self._fields(at, model.COLLECTION, f"collection '{name}'")
        if fields is None:
            return None
        if ("schema" in fields) == ("readSchema" in fields or "writeSchema" in fields) or (
            ("readSchema" in fields) != ("writeSchema" in fields)
        ):
            self.issue(
                "E401",
                f"collection '{name}' needs either 'schema', or both 'readSchema' and 'writeSchema'",
                at.key_position,
            )
            return None
        write_at = fields.get("schema") or fields["writeSchema"]
        write = self._schema(write_at, url)
        read = self._schema(fields["readSchema"], url) if "readSchema" in fields else write
        projections = self._projections(fields["projections"]) if "projections" in fields else None
        derive = self._derive(fields["derive"], url, name) if "derive" in fields else None
        if write is None or read is None or (derive is None and "derive" in fields):
            return None
        key = fields["key"] if self._is(fields["key"], list, "'key'") else None
        return CollectionDef(name, at, key, write, read, write_at, projections, derive)

    def _projections(self, at: Located) -> Located | None:
        if not self._is(at, dict, "'projections'"):
            return None
        good = True
        for field, each in at.items():
            if isinstance(each.value, str):
                continue
            parts = self._fields(each, model.PROJECTION, f"projection '{field}'")
            good = good and parts is not None
            if parts and "partition" in parts:
                self._is(parts["partition"], bool, "'partition'")
        return at if good else None

    def _schema(self, at: Located, url: str) -> JSON:
        schema = {"$ref": at.value} if isinstance(at.value, str) else at.value
        if not isinstance(schema, dict):
            self.issue("E010", "a schema must be an object, or the name of a file", at.position)
            return None
        try:
            return bundle(schema, url, self._resources.value)
        except OSError as exc:
            file = exc.filename or getattr(exc, "url", None) or at.value
            self.issue("E003", f"cannot load schema {Resources.show(str(file))}: {why(exc)}", at.position)
        except CatalogError as exc:
            self.issues += exc.issues
        return None

    def _derive(self, at: Located, url: str, name: str) -> DeriveDef | None:
        fields = self._fields(at, model.DERIVE, f"'derive' of '{name}'")
        several = ("E014", "'using' names exactly one of 'sqlite' and 'typescript'")
        using = self._one_of(fields["using"], model.USING, "'using'", several) if fields else None
        if fields is None or using is None:
            return None
        connector, config = using
        migrations: list[Script | None] = []
        module = None
        if connector == "sqlite":
            settings = self._fields(_or_empty(config), model.SQLITE, "'sqlite'")
            listed = settings.get("migrations") if settings else None
            if listed is not None and self._is(listed, list, "'migrations'"):
                migrations = [self._script(each, url, "the migration") for each in listed.elements()]
        else:
            settings = self._fields(config, model.TYPESCRIPT, "'typescript'")
            module = self._script(settings["module"], url, "the module") if settings else None
        tick, disabled = self._shards(fields.get("shards"))
        transforms = []
        if self._is(fields["transforms"], list, "'transforms'"):
            transforms = [self._transform(each, url) for each in fields["transforms"].elements()]
        if settings is None or None in migrations or None in transforms or (connector != "sqlite" and module is None):
            return None
        return DeriveDef(
            connector=connector,
            migrations=tuple(each for each in migrations if each),
            module=module,
            transforms=tuple(each for each in transforms if isinstance(each, TransformDef)),
            shuffle_key_types=self._key_types(fields.get("shuffleKeyTypes")),
            tick=tick,
            disabled=disabled,
        )

    def _key_types(self, at: Located | None) -> Located | None:
        if at is None or not self._is(at, list, "'shuffleKeyTypes'"):
            return None
        for each in at.elements():
            if each.value not in ("boolean", "integer", "string"):
                self.issue("E505", "the type of a shuffle key is 'boolean', 'integer' or 'string'", each.position)
        return at

    def _shards(self, at: Located | None) -> tuple[int, bool]:
        fields = self._fields(at, model.SHARDS, "'shards'") if at else {}
        if not fields:
            return _TICK, False
        tick = self._micros(fields["maxTxnDuration"], "'maxTxnDuration'") if "maxTxnDuration" in fields else _TICK
        if tick == 0:
            self.issue("E013", "'maxTxnDuration' must be longer than 0s", fields["maxTxnDuration"].position)
        return tick or _TICK, "disable" in fields and fields["disable"].value is True

    def _transform(self, at: Located, url: str) -> TransformDef | bool | None:  # noqa: PLR0911
        """The definition; False if the transform is disabled, None if it is wrong."""
        fields = self._fields(at, model.TRANSFORM, "a transform")
        if fields is None or not self._is(fields["name"], str, "'name'"):
            return None
        if "disable" in fields and fields["disable"].value is True:
            return False
        source = self._source(fields["source"], model.SOURCE)
        if source is None:
            return None
        numbers = {}
        for name in ("priority", "backfill"):
            good = name not in fields or self._is(fields[name], int, f"'{name}'")
            numbers[name] = fields[name].value if good and name in fields else 0
        delay = self._micros(fields["readDelay"], "'readDelay'") if "readDelay" in fields else 0
        if delay is None:
            return None
        script = shuffle_script = None
        if "lambda" in fields and isinstance(fields["lambda"].value, str):
            script = self._script(fields["lambda"], url, "the lambda")
            if script is None:
                return None
        shuffle = fields.get("shuffle")
        if shuffle is not None and shuffle.value != "any":
            wrong = ("E015", "'shuffle' is 'any', or an object with 'key' or 'lambda'")
            if not isinstance(shuffle.value, dict):
                self.issue(*wrong, shuffle.position)
                return None
            part = self._one_of(shuffle, model.SHUFFLE, "'shuffle'", wrong)
            if part is None:
                return None
            if part[0] == "lambda":
                shuffle_script = self._script(part[1], url, "the shuffle lambda")
                if shuffle_script is None:
                    return None
        return TransformDef(
            name=fields["name"],
            source=source,
            shuffle=shuffle,
            shuffle_script=shuffle_script,
            script=script,
            priority=numbers["priority"],
            read_delay=delay // 1_000_000 * 1_000_000,
            backfill=numbers["backfill"],
        )

    def _source(self, at: Located, fields: Fields) -> SourceDef | None:
        if isinstance(at.value, str):
            return SourceDef(at)
        parts = self._fields(at, fields, "a source")
        if parts is None or not self._is(parts["name"], str, "'name'"):
            return None
        partitions = self._partitions(parts.get("partitions"))
        return SourceDef(parts["name"], partitions, parts.get("notBefore"), parts.get("notAfter"))

    def _partitions(self, at: Located | None) -> Located | None:
        sides = self._fields(at, model.SELECTOR, "a partition selector") if at else None
        kinds = [self._is(each, dict, f"'{name}'") for name, each in sides.items()] if sides else []
        return at if at and sides is not None and all(kinds) and len(sides) == len(at.value) else None

    # Tests

    def _test(self, at: Located, url: str) -> TestDef | None:
        name = str(at.path[-1])
        description = ""
        steps = at
        if isinstance(at.value, dict):
            fields = self._fields(at, model.TEST, f"test '{name}'")
            if fields is None:
                return None
            description = str(fields["description"].value) if "description" in fields else ""
            steps = fields["steps"]
        if not self._is(steps, list, "'steps'" if steps is not at else f"test '{name}'"):
            return None
        loaded = [self._step(each, url) for each in steps.elements()]
        return TestDef(name, at, description, tuple(each for each in loaded if each))

    def _step(self, at: Located, url: str) -> StepDef | None:
        only = self._one_of(at, model.STEP, "a step", ("E016", "a step is either 'ingest' or 'verify'"))
        if only is None:
            return None
        kind, body = only
        fields = self._fields(body, model.INGEST if kind == "ingest" else model.VERIFY, f"'{kind}'")
        if fields is None:
            return None
        source = self._source(fields["collection"], model.VERIFY_SOURCE)
        if source is not None and "partitions" in fields:
            source = SourceDef(source.name, self._partitions(fields["partitions"]))
        documents = self._documents(fields["documents"], url)
        if source is None or documents is None:
            return None
        description = str(fields["description"].value) if "description" in fields else ""
        return StepDef(kind, body, source, documents, fields["documents"], description)

    def _documents(self, at: Located, url: str) -> tuple[JSON, ...] | None:
        value = at.value
        if isinstance(value, str):
            target = Resources.resolve(url, value)
            try:
                value = self._resources.value(target)
            except OSError as exc:
                self.issue("E003", f"cannot load documents {Resources.show(target)}: {why(exc)}", at.position)
                return None
            except CatalogError as exc:
                self.issues += exc.issues
                return None
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.issue("E601", "'documents' must be an array of objects", at.position)
            return None
        return tuple(value)


def _or_empty(at: Located) -> Located:
    return Located(at.file, at.path, {}) if at.value is None else at
