"""Code files that a catalog file names: lambdas, and other files of a connector."""

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
    """Loads code that is named by a catalog file; the connectors' view of the catalog (`CatalogFiles`).

    Attributes:
        url: URL of the catalog's file, the base of relative paths.
        root: folder of the project.
        resources: loader of files.
        issues: report for issues.
        missing: set for URLs of missing code files.
    """

    url: str
    root: str
    resources: Resources
    issues: Report
    missing: set[str]

    def script(self, at: LocatedValue, role: str, *, may_be_inline: bool = True) -> Script | None:
        """Return code that is written inline or, if the string has no white space, in the named file."""
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
        """Return the text of a file."""
        return self.resources.text(url)

    def content(self, url: str) -> bytes:
        """Return the bytes of a file."""
        return self.resources.content(url)

    def report(self, issue: Issue, missing: str = "") -> None:
        """Add an issue, and the URL of a missing file that `generate` can create."""
        self.issues.take([issue])
        if missing:
            self.missing.add(missing)
