"""Settings of a session: what SET sets, SHOW shows, and clients are told of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from derive.adapter.transactions import Isolation
from derive.errors import SqlError
from derive.suggest import suggest

SERVER_VERSION = "16.0"

_UNITS = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_BOOLEANS = {"on": "on", "true": "on", "yes": "on", "1": "on", "off": "off", "false": "off", "no": "off", "0": "off"}
_ISOLATIONS = {
    "strict serializable": Isolation.STRICT_SERIALIZABLE,
    "serializable": Isolation.SERIALIZABLE,
    "repeatable read": Isolation.SERIALIZABLE,
    "read committed": Isolation.SERIALIZABLE,
    "read uncommitted": Isolation.SERIALIZABLE,
}
"""What is stricter than what is asked for will do."""


def isolation_of(text: str) -> Isolation:
    """The isolation that a text names.

    Raises:
        SqlError: 22023, none.
    """
    isolation = _ISOLATIONS.get(text.strip().lower())
    if isolation is None:
        hint = f"Available values: {', '.join(_ISOLATIONS)}."
        raise SqlError("22023", f'invalid value for parameter "transaction_isolation": "{text}"', hint=hint)
    return isolation


def _text(_: str, value: str) -> str:
    return value


def _isolation(_: str, value: str) -> str:
    return isolation_of(value).value


def _boolean(name: str, value: str) -> str:
    try:
        return _BOOLEANS[value.lower()]
    except KeyError:
        raise SqlError("22023", f'parameter "{name}" requires a Boolean value') from None


def _milliseconds(name: str, value: str) -> str:
    match = _DURATION.fullmatch(value.lower())
    if match is None or match[2] not in _UNITS:
        hint = "Valid units are ms, s, min, h and d."
        raise SqlError("22023", f'invalid value for parameter "{name}": "{value}"', hint=hint)
    milliseconds = round(float(match[1]) * _UNITS[match[2]])
    return f"{milliseconds}ms" if milliseconds else "0"


def _only(*allowed: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        for choice in allowed:
            if value.lower() == choice.lower():
                return choice
        hint = f"This server knows {', '.join(allowed)}."
        raise SqlError("22023", f'invalid value for parameter "{name}": "{value}"', hint=hint)

    return check


@dataclass(frozen=True, slots=True)
class _Setting:
    default: str
    checked: Callable[[str, str], str] | None = _text
    """None for what cannot be set."""
    is_told: bool = False


_SETTINGS: Mapping[str, _Setting] = {
    "application_name": _Setting("", is_told=True),
    "bytea_output": _Setting("hex", _only("hex")),
    "client_encoding": _Setting("UTF8", _only("UTF8", "UTF-8", "unicode"), is_told=True),
    "client_min_messages": _Setting("notice"),
    "DateStyle": _Setting("ISO, MDY", _only("ISO, MDY", "ISO"), is_told=True),
    "default_transaction_read_only": _Setting("off", _boolean),
    "extra_float_digits": _Setting("1"),
    "idle_in_transaction_session_timeout": _Setting("0", _milliseconds),
    "in_hot_standby": _Setting("off", None, is_told=True),
    "integer_datetimes": _Setting("on", None, is_told=True),
    "IntervalStyle": _Setting("postgres", _only("postgres"), is_told=True),
    "is_superuser": _Setting("on", None, is_told=True),
    "lock_timeout": _Setting("0", _milliseconds),
    "search_path": _Setting("public"),
    "server_encoding": _Setting("UTF8", None, is_told=True),
    "server_version": _Setting(SERVER_VERSION, None, is_told=True),
    "server_version_num": _Setting("160000", None),
    "session_authorization": _Setting("flow", is_told=True),
    "standard_conforming_strings": _Setting("on", _only("on"), is_told=True),
    "statement_timeout": _Setting("0", _milliseconds),
    "TimeZone": _Setting("UTC", _only("UTC", "Etc/UTC", "GMT"), is_told=True),
    "transaction_isolation": _Setting(Isolation.STRICT_SERIALIZABLE.value, _isolation),
}
_BY_LOWER = {name.lower(): name for name in _SETTINGS} | {
    "default_transaction_isolation": "transaction_isolation",
    "time zone": "TimeZone",
    "names": "client_encoding",
}


def name_of(name: str, offset: int | None = None) -> str:
    """The name of a setting as it is written.

    Raises:
        SqlError: 42704, there is none.
    """
    known = _BY_LOWER.get(name.lower())
    if known is None:
        nearest = suggest(name.lower(), _BY_LOWER)
        hint = f"Did you mean {nearest}?" if nearest else None
        raise SqlError("42704", f'unrecognized configuration parameter "{name}"', offset=offset, hint=hint)
    return known


class Settings:
    """Settings of one session.

    Args:
        begun: what the client has set as it connected; what is no setting is passed over.
    """

    def __init__(self, begun: Mapping[str, str]) -> None:
        self._defaults = {name: setting.default for name, setting in _SETTINGS.items()}
        for name, value in begun.items():
            known = _BY_LOWER.get(name.lower())
            checked = _SETTINGS[known].checked if known else None
            if known and checked:
                self._defaults[known] = checked(known, value)
        self._values: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._told: dict[str, str] | None = None

    @property
    def told(self) -> dict[str, str]:
        """What clients are told of; to be read only."""
        if self._told is None:
            self._told = {name: self.get(name) for name, setting in _SETTINGS.items() if setting.is_told}
        return self._told

    @property
    def isolation(self) -> Isolation:
        """Of the next transaction."""
        return Isolation(self.get("transaction_isolation"))

    @property
    def timeout(self) -> float | None:
        """Seconds that a statement may take."""
        text = self.get("statement_timeout")
        return int(text.removesuffix("ms")) / 1000 or None

    def get(self, name: str) -> str:
        """The value of a setting, by the name as it is written."""
        return self._local.get(name) or self._values.get(name) or self._defaults[name]

    def all(self) -> dict[str, str]:
        """All settings and their values."""
        return {name: self.get(name) for name in sorted(_SETTINGS, key=str.lower)}

    def set(self, name: str, value: str | None, *, is_local: bool = False, offset: int | None = None) -> None:
        """Set a setting, for as long as the session or the transaction lasts.

        Args:
            name: in any case; `all` for all of them, with no value.
            value: None for the default.
            is_local: until the transaction ends.
            offset: of the name in the statement.

        Raises:
            SqlError: there is no such setting, or no such value.
        """
        self._told = None
        if name == "all":
            self._values.clear()
            return
        known = name_of(name, offset)
        checked = _SETTINGS[known].checked
        if checked is None:
            raise SqlError("55P02", f'parameter "{known}" cannot be changed', offset=offset)
        new = self._defaults[known] if value is None else checked(known, value)
        (self._local if is_local else self._values)[known] = new

    def end_transaction(self) -> None:
        """Forget what was set for the transaction."""
        if self._local:
            self._local.clear()
            self._told = None
