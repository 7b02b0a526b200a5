"""What is handed over comes in order, from any thread, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest
from patience import PATIENCE_SECONDS

from derive.event_loop import Handover


@pytest.mark.parametrize("is_patient", [True, False])
async def test_handover_keeps_the_order_of_each_thread(*, is_patient: bool) -> None:
    handover: Handover[tuple[int, int]] = Handover(is_patient=lambda: is_patient)
    handover.put((9, 0))
    assert handover.get_nowait() == (9, 0)
    assert handover.get_nowait() is None

    def fill(thread: int) -> None:
        for number in range(500):
            handover.put((thread, number))

    threads = [threading.Thread(target=fill, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    taken: list[list[int]] = [[], [], []]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(map(len, taken)) < 1500:
            item = await handover.get()
            if item is not None:
                taken[item[0]].append(item[1])
    assert taken == [list(range(500))] * 3
    for thread in threads:
        thread.join()
    assert await handover.get(0.001) is None


async def test_thread_waiting_for_room_continues_when_the_handover_is_closed() -> None:
    handover: Handover[int] = Handover(is_patient=lambda: True)
    for number in range(20):
        handover.put(number)  # the event loop's own thread never waits
    thread = threading.Thread(target=handover.put, args=(20,))
    thread.start()
    await asyncio.to_thread(thread.join, 0.05)
    assert thread.is_alive()
    handover.close()
    await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert handover.get_nowait() is None


async def test_handover_ignores_wakeups_for_items_already_taken() -> None:
    handover: Handover[int] = Handover(is_patient=lambda: False)
    handover.put(1)
    assert await handover.get() == 1
    waiting = asyncio.create_task(handover.get())
    await asyncio.sleep(0)
    handover._notify()  # as a thread does that has handed 1 over, and then lost the interpreter
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    handover.put(2)
    assert await waiting == 2
