"""Settings of a session."""

from __future__ import annotations

from derive.adapter.settings import Settings


def test_clients_are_told_of_what_is_set_now() -> None:
    settings = Settings({"application_name": "begun"})
    assert settings.told["application_name"] == "begun"
    settings.set("application_name", "changed")
    assert settings.told["application_name"] == "changed"
    settings.set("application_name", "of a transaction", is_local=True)
    assert settings.told["application_name"] == "of a transaction"
    settings.end_transaction()
    assert settings.told["application_name"] == "changed"
    settings.set("all", None)
    assert settings.told["application_name"] == "begun"
    assert "statement_timeout" not in settings.told
