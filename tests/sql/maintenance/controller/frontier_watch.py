"""Frontiers go forward only, whatever goes wrong: of tables and views in Storage, of what is held, and as clients see them."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import psycopg
from standing_views import StandingClient
from torture_sql import Server

from derive.storage.store import Store


class FrontierWatch(StandingClient):
    """Looks again and again how far everything is."""

    def __init__(self, server: Server, chance: random.Random, data: Path) -> None:
        super().__init__(server, chance, pause=0.3)
        self._data = data
        self._stored: dict[tuple[str, int], int] = {}
        self._maintained: dict[tuple[int, str], int] = {}

    def act(self, connection: psycopg.Connection) -> None:
        life = self._server.lives
        shown = connection.execute("SHOW MAINTENANCE").fetchall()
        if life == self._server.lives:  # else it may be of either
            for name, upper, *_ in shown:
                if upper is not None and not name.startswith("extra_"):  # which is dropped and created anew
                    self._expect_later(self._maintained, (life, name), int(upper))
        with closing(Store(self._data, reading=True)) as store:
            for table in store.tables.all():
                self._expect_later(self._stored, ("since", table.id), table.since)
                self._expect_later(self._stored, ("upper", table.id), table.upper)
            for identifier, held in {
                **store.task_capabilities.dataflows("index"),
                **store.task_capabilities.dataflows("view"),
            }.items():
                self._expect_later(self._stored, ("held", identifier), held)

    @staticmethod
    def _expect_later(known: dict, key: tuple, frontier: int) -> None:  # type: ignore[type-arg]
        if frontier < known.get(key, frontier):
            raise SystemExit(f"{key} goes back from {known[key]} to {frontier}")
        known[key] = frontier
