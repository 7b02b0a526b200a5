"""Settings of a session."""

from __future__ import annotations

import pytest

from derive.errors import SqlError
from derive.sql.execution.settings import Settings


def test_settings_report_current_values() -> None:
    settings = Settings({"application_name": "begun"})
    assert settings.reported["application_name"] == "begun"
    settings.set("application_name", "changed")
    assert settings.reported["application_name"] == "changed"
    settings.set("application_name", "of a transaction", is_local=True)
    assert settings.reported["application_name"] == "of a transaction"
    settings.end_transaction()
    assert settings.reported["application_name"] == "changed"
    settings.set("all", None)
    assert settings.reported["application_name"] == "begun"
    assert "statement_timeout" not in settings.reported


@pytest.mark.parametrize(
    ("name", "value", "now"),
    [
        ("client_encoding", "'utf-8'", "UTF8"),  # as asyncpg writes it
        ("client_encoding", "Unicode", "UTF8"),
        ("client_encoding", "'SQL_ASCII'", "SQL_ASCII"),  # psql's in the locale C
        ("client_encoding", "sql_ascii", "SQL_ASCII"),
        ("DateStyle", "iso", "ISO, MDY"),
        ("datestyle", "ISO,MDY", "ISO, MDY"),
        ("TIMEZONE", "Etc/UTC", "UTC"),
        ("timezone", "+00:00", "UTC"),  # as Sequelize writes it
        ("timezone", "<+00>+00", "UTC"),
        ("statement_timeout", "1min", "60000ms"),
        ("enable_seqscan", "false", "off"),
        ("row_security", "off", "off"),
        ("application_name", "", ""),
        ("MyApp.User", "ann", "ann"),
    ],
)
def test_setting_values_are_normalized(name: str, value: str, now: str) -> None:
    settings = Settings({"application_name": "begun"})
    settings.set(name, value)

    assert settings.get(name) == now
    assert now in settings.all().values()


@pytest.mark.parametrize(
    ("name", "value", "sqlstate"),
    [
        ("client_encoding", "EUC_TW", "22023"),
        ("DateStyle", "German", "22023"),
        ("DateStyle", "ISO, DMY", "22023"),
        ("TimeZone", "Europe/Nowhere", "22023"),
        ("TimeZone", "CEST", "22023"),
        ("TimeZone", "CET", "22023"),
        ("TimeZone", "25", "22023"),
        ("bytea_output", "escape", "22023"),
        ("enable_seqscan", "perhaps", "22023"),
        ("server_version", "17", "55P02"),
        ("nothing", "1", "42704"),
    ],
)
def test_invalid_setting_values_are_refused(name: str, value: str, sqlstate: str) -> None:
    settings = Settings({})
    with pytest.raises(SqlError) as raised:
        settings.set(name, value)

    assert raised.value.sqlstate == sqlstate
    assert settings.all() == Settings({}).all()


def test_dotted_settings_are_unknown_before_they_are_set() -> None:
    settings = Settings({})
    with pytest.raises(SqlError, match="unrecognized"):
        settings.get("myapp.user")
    settings.set("myapp.user", "ann", is_local=True)
    assert settings.get("myapp.user") == "ann"
    settings.end_transaction()
    with pytest.raises(SqlError, match="unrecognized"):
        settings.get("myapp.user")


def test_rollback_undoes_settings() -> None:
    settings = Settings({})
    settings.set("application_name", "kept")
    settings.end_transaction()
    settings.set("application_name", "forgotten")
    settings.set("work_mem", "1MB")
    settings.end_transaction(is_committed=False)

    assert (settings.reported["application_name"], settings.get("work_mem")) == ("kept", "4MB")
    settings.set("application_name", "more")
    settings.set("all", None)
    settings.end_transaction(is_committed=False)
    assert settings.get("application_name") == "kept"


def test_session_settings_replace_earlier_transaction_settings() -> None:
    settings = Settings({})
    settings.set("application_name", "local", is_local=True)
    settings.set("application_name", "session")

    assert settings.get("application_name") == "session"


def test_connection_options_set_settings() -> None:
    settings = Settings(
        {
            "options": r"-c statement_timeout=5s -cwork_mem=1MB --lock-timeout=3ms -c application_name=a\ b\\c -B 5",
            "TimeZone": "europe/berlin",
            "extra_float_digits": "3",
            "database": "flow",
        }
    )

    assert settings.get("statement_timeout") == "5000ms"
    assert settings.get("work_mem") == "1MB"
    assert settings.get("lock_timeout") == "3ms"
    assert settings.get("application_name") == "a b\\c"
    assert settings.get("extra_float_digits") == "3"
    assert settings.reported["TimeZone"] == "Europe/Berlin"
    assert Settings({"TimeZone": "Europe/Nowhere"}).reported["TimeZone"] == "UTC"  # refused in a statement only
    with pytest.raises(SqlError, match="client_encoding"):
        Settings({"options": "-c client_encoding=EUC_TW"})
