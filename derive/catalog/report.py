"""The report: where the rules of a catalog put what they find.

A schema file that many collections share is inspected for each of them; what is wrong in it is said once.
"""

from __future__ import annotations

from derive.catalog.language.yaml import Located
from derive.errors import Issue
from derive.position import Position


class Report:
    """Collects issues.

    Attributes:
        issues: everything found wrong, each once.
        count: how many findings there were, repeated ones included: whether a rule found something shows in it.
    """

    def __init__(self, issues: list[Issue]) -> None:
        self.issues = issues
        self.count = 0
        self._seen: set[Issue] = set()

    def add(self, code: str, message: str, at: Located | Position, hint: str | None = None) -> None:
        """Note something wrong.

        Args:
            code: of the rule.
            message: what is wrong, naming the thing.
            at: where it is written.
            hint: what was probably meant.
        """
        self.count += 1
        issue = Issue(code, message, at.position if isinstance(at, Located) else at, hint)
        if issue not in self._seen:
            self._seen.add(issue)
            self.issues.append(issue)
