"""Files of code that one file of a catalog names: lambdas, and whatever else a connector asks for."""

from __future__ import annotations

from dataclasses import dataclass

from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.errors import Issue
from derive.position import Position, Script
from derive.protocol.authoring import LocatedValue
from derive.protocol.resource import reason_of, resolve, show

_NO_SPACE = "a string without any space is taken for the name of a file"
_GENERATE = "'flowctl generate' begins it"


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """Loads code from beside a file of a catalog; what connectors are given of the catalog (`CatalogFiles`).

    Attributes:
        url: URL of the catalog's file, where relative paths begin.
        root: the project's folder.
        resources: loads files.
        issues: takes the issues.
        missing: takes URLs of files of code that do not exist.
    """

    url: str
    root: str
    resources: Resources
    issues: Report
    missing: set[str]

    def script(self, at: LocatedValue, role: str, *, may_be_inline: bool = True) -> Script | None:
        """Code that is written inline or, if the string has no white space, in the file it names."""
        text: str = at.value
        if may_be_inline and (any(character.isspace() for character in text) or not text):
            return at.script()
        url = resolve(self.url, text)
        try:
            if "#" in text:
                raise OSError("only schemas have parts that '#' can name")
            content = self.resources.text(url)
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError)
            hint = f"{_NO_SPACE}; {_GENERATE}" if is_missing else _NO_SPACE
            issue = Issue("E003", f"cannot load {role} {show(url)}: {reason_of(exc)}", at.position, hint)
            self.report(issue, missing=url if is_missing else "")
            return None
        return Script(content, content, Position(show(url)))

    def text(self, url: str) -> str:
        """The text of a file."""
        return self.resources.text(url)

    def content(self, url: str) -> bytes:
        """The bytes of a file."""
        return self.resources.content(url)

    def report(self, issue: Issue, missing: str = "") -> None:
        """Report an issue, and the URL of a missing file that `generate` begins."""
        self.issues.take([issue])
        if missing:
            self.missing.add(missing)
