"""The report: it takes the issues that loading and the rules of a catalog find.

A schema file that many collections share is examined for each of them, and each of its issues is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable

from derive.catalog.language.yaml import Located
from derive.errors import Issue
from derive.position import Position


class Report:
    """Collects issues.

    Attributes:
        issues: every issue, once.
        count: the number of issues, repeated ones included. It has grown if a rule has found something.
    """

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.count = 0
        self._seen: set[Issue] = set()

    def add(self, code: str, message: str, at: Located | Position, hint: str | None = None) -> None:
        """Report an issue.

        Args:
            code: code of the rule.
            message: what is wrong, with the name of the thing.
            at: where it is written.
            hint: what was probably meant, or what to do.
        """
        self.take([Issue(code, message, at.position if isinstance(at, Located) else at, hint)])

    def take(self, issues: Iterable[Issue]) -> None:
        """Report issues that were found elsewhere."""
        for issue in issues:
            self.count += 1
            if issue not in self._seen:
                self._seen.add(issue)
                self.issues.append(issue)
