"""The report: a collector of issues from loading and from the rules.

A schema file that several collections share is examined for each collection, and each of its issues is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable

from derive.catalog.language.yaml import Located
from derive.errors import Issue
from derive.position import Position


class Report:
    """Collects issues.

    Attributes:
        issues: distinct issues.
        count: number of issues including repeated ones, which grows with each detection.
    """

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.count = 0
        self._seen: set[Issue] = set()

    def add(self, code: str, message: str, at: Located | Position, hint: str | None = None) -> None:
        """Add an issue.

        Args:
            code: code of the rule.
            message: the defect, with the name of the affected thing.
            at: place of the defect.
            hint: the probable intention, or a remedy.
        """
        self.take([Issue(code, message, at.position if isinstance(at, Located) else at, hint)])

    def take(self, issues: Iterable[Issue]) -> None:
        """Add issues that another part has found."""
        for issue in issues:
            self.count += 1
            if issue not in self._seen:
                self._seen.add(issue)
                self.issues.append(issue)
