"""Settings of a session: SET, SHOW, and reports to the client."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.preparation import KNOWN_SETTINGS, KnownSetting, known_name, path_of, unknown
from derive.sql.transactions.transaction import Isolation

_OWN = KnownSetting("")
"""Pattern of the name of a custom setting, which has a dot."""
_SPACES = re.compile(r"(?<!\\)\s+")


SetValues: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]
"""Values set for the session, and for the transaction."""


class Settings:
    """Settings of one session.

    Args:
        begun: startup parameters of the client; unknown names are ignored.
        fixed: settings that the server determines.

    Raises:
        SqlError: a value is invalid.
    """

    def __init__(self, begun: Mapping[str, str], fixed: Mapping[str, str] = MappingProxyType({})) -> None:
        self._defaults = {name: setting.default for name, setting in KNOWN_SETTINGS.items()} | dict(fixed)
        for name, value in (*_options(begun.get("options", "")), *begun.items()):
            self._begin(name, value)
        self._values: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._before: dict[str, str] | None = None  # values before the transaction, after its first SET
        self._reported: dict[str, str] | None = None
        self._path: tuple[str | None, tuple[str, ...]] | None = None  # with the temporary schema, until a SET
        self._zone: str | None = None  # until a SET

    @property
    def reported(self) -> dict[str, str]:
        """Return the settings that are reported to clients; read-only."""
        if self._reported is None:
            self._reported = {name: self.get(name) for name, setting in KNOWN_SETTINGS.items() if setting.is_reported}
        return self._reported

    @property
    def isolation(self) -> Isolation:
        """Return the isolation level of the next transaction."""
        return Isolation(self.get("transaction_isolation"))

    def search_path(self, user: str, temporary: str | None) -> tuple[str, ...]:
        """Return the schemas in which names without a schema are looked up, for a user.

        `temporary` is the schema of the session's temporary relations.
        """
        if self._path is None or self._path[0] != temporary:
            self._path = temporary, path_of(self.get("search_path"), user, temporary)
        return self._path[1]

    @property
    def zone(self) -> str | None:
        """Return the time zone; None for UTC."""
        if self._zone is None:
            self._zone = self.get("TimeZone")
        return None if self._zone == "UTC" else self._zone

    def seconds(self, name: str) -> float | None:
        """Return the seconds of a timeout setting; None for no limit."""
        text = self.get(name)
        return None if text == "0" else int(text.removesuffix("ms")) / 1000

    def get(self, name: str, offset: int | None = None, others: Collection[str] = ()) -> str:
        """Return the value of a setting by its case-insensitive name; `others` are candidates for the hint.

        Raises:
            SqlError: the setting does not exist (42704).
        """
        known = known_name(name)
        for values in (self._local, self._values, self._defaults):
            if known in values:
                return values[known]
        raise unknown(name, offset, others)

    def all(self) -> dict[str, str]:
        """Return all settings with their values."""
        names = {*self._defaults, *self._values, *self._local}
        return {name: self.get(name) for name in sorted(names, key=str.lower)}

    def set(self, name: str, value: str | None, *, is_local: bool = False, offset: int | None = None) -> None:
        """Set a setting for the session or the transaction.

        Args:
            name: case-insensitive name; `all` without value for all settings.
            value: value; None for the default.
            is_local: whether the value ends with the transaction.
            offset: offset of the name in the statement.

        Raises:
            SqlError: the setting is unknown, or the value is invalid.
        """
        self._forget()
        if self._before is None:
            self._before = dict(self._values)
        if name == "all":
            self._values.clear()
            self._local.clear()
            return
        known = known_name(name)
        if known is None:
            raise unknown(name, offset)
        setting = KNOWN_SETTINGS.get(known, _OWN)
        checked = setting.checked
        if checked is None:
            raise SqlError("55P02", f'parameter "{known}" cannot be changed', offset=offset)
        if setting.is_own and value not in {None, self._defaults[known]}:
            hint = f"Roles are not supported: the session keeps the user {self._defaults[known]}."
            raise SqlError(
                "42501", f'permission denied to set {known.replace("_", " ")} to "{value}"', offset=offset, hint=hint
            )
        new = self._defaults.get(known, "") if value is None else checked(known, value)
        if not is_local:
            self._local.pop(known, None)
        (self._local if is_local else self._values)[known] = new

    def _forget(self) -> None:
        """Forget what was derived from values that change."""
        self._reported = self._path = self._zone = None

    def values(self) -> SetValues:
        """Return the current values, for `go_back`."""
        return dict(self._values), dict(self._local)

    def go_back(self, values: SetValues) -> None:
        """Restore earlier values."""
        self._values, self._local = dict(values[0]), dict(values[1])
        self._forget()

    def end_transaction(self, *, is_committed: bool = True) -> None:
        """Discard the values of the transaction. If it is not committed, undo its SETs as well."""
        if self._local or self._before is not None:
            self._local.clear()
            if not is_committed and self._before is not None:
                self._values = self._before
            self._before = None
            self._forget()

    def _begin(self, name: str, value: str) -> None:
        known = known_name(name)
        setting = KNOWN_SETTINGS.get(known, _OWN) if known else None
        if known is None or setting is None or setting.checked is None or setting.is_own:
            return
        try:
            self._defaults[known] = setting.checked(known, value)
        except SqlError:
            if not setting.is_optional:
                raise


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield settings in server options: `-c name=value` and `--name=value`, with a backslash before inner spaces."""
    words = iter(_SPACES.split(text.strip()))
    for word in words:
        if word.startswith("--"):
            written = word[2:]
        elif word.startswith("-c"):
            written = word[2:] or next(words, "")
        else:
            continue
        name, _, value = re.sub(r"\\(.)", r"\1", written).partition("=")
        yield name.replace("-", "_"), value
