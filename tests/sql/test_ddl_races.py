"""Law: each answer beside definitions is that of one state, whichever hand-off between threads is slow."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from ddl_races import Oracle, Race, Windows
from postgres_server import server
from sql_world import SqlWorld


@pytest.mark.torture  # test_concurrent_definitions.py
@pytest.mark.parametrize("seed", range(40))
async def test_answers_beside_definitions_are_of_one_state(seed: int, tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        async with world.opened() as coordinator, world.opened() as beside:
            coordinator.own()
            race = Race(coordinator, beside, seed)
            await race.begin()
            Windows(patch, Random(seed), 0.12)
            await race.play(14)
            patch.undo()
            await race.settle()
            with server().connect() as postgres:
                postgres.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; SET client_min_messages = error")
                oracle = Oracle(postgres, race)
            troubles = [*oracle.troubles, *oracle.wrong_answers(), *oracle.wrong_rows()]
            changes = [f"{number}: {text} {outcome.sqlstate}" for number, (text, outcome) in enumerate(race.changes, 1)]
            assert troubles == [], "\n".join([*changes, *troubles])
