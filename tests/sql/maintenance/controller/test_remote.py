"""A controller's connection to an instance in another process, which is kept in an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS, wait_until
from silent_connections import SILENCES, await_ends, silent
from test_late_dataflows import Nothing
from typing_extensions import override

from derive.compute.instance import Instance
from derive.compute.protocol.messages import Command, InitializationComplete, Welcome
from derive.compute.protocol.transport import OPEN, Security, command_message
from derive.compute.replica import worker
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity, Session
from derive.compute.replica.worker import InstanceServer
from derive.errors import UsageError
from derive.event_loop import new_event_loop
from derive.protocol.stubs import compute_pb2 as pb
from derive.sql.maintenance.controller import remote
from derive.sql.maintenance.controller.controller import Controller
from derive.sql.maintenance.controller.remote import RemoteReplica

_SILENT_SECONDS = 2.0
"""Time for the handshake of a connection, also of the controller that must get through on a busy machine."""


class Slow(Security):
    """Is asked for while a connection is made, and answers once that is to be closed."""

    asked, closing = threading.Event(), threading.Event()

    @property
    @override
    def metadata(self) -> tuple[tuple[str, str], ...]:
        self.asked.set()
        assert self.closing.wait(PATIENCE_SECONDS)
        return ()


async def _end_others() -> None:
    """End all tasks but this one: a channel that were open yet would use the loop after its end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(_end_others(), loop).result(PATIENCE_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def reconciling(folder: Path) -> Iterator[Reconciler]:
    """An instance that works until the block ends."""
    reconciler = Reconciler(
        Instance(folder),
        lambda dataflow, as_of: {},
        lambda instance, identifiers: {},
        identity=Identity("one"),
        run=lambda task: task(),
        wake=lambda: None,
    )
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.01):
            reconciler.work()

    thread = threading.Thread(target=work)
    thread.start()
    yield reconciler
    is_over.set()
    thread.join()
    reconciler.close()


def _is_tried(replica: RemoteReplica) -> bool:
    return replica.trouble != "is not connected yet"


def listen(reconciler: Reconciler, address: str) -> InstanceServer:
    """An instance served at an address that another one had a moment ago."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return InstanceServer(reconciler, address, OPEN)
        except UsageError:
            assert time.monotonic() < deadline


def test_connection_closed_during_its_start_is_not_attached(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    controller, security = Controller(1, Nothing()), Slow()
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        replica = RemoteReplica(controller, "one", server.address, security, loop)
        assert security.asked.wait(PATIENCE_SECONDS)
        replica.close()  # does not wait for the event loop, which waits for this thread
        security.closing.set()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        server.stop()
    assert controller.replicas() == {}
    assert replica._connected.cancelled()


def test_restarted_instance_is_connected_again(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    welcomes: list[str] = []
    is_welcomed = threading.Semaphore(0)

    def note(name: str, welcome: Welcome) -> None:
        welcomes.append(f"{name} {welcome.process}")
        is_welcomed.release()

    controller = Controller(1, Nothing(), on_welcome=note)
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        replica = RemoteReplica(controller, "one", server.address, OPEN, loop)
        assert is_welcomed.acquire(timeout=PATIENCE_SECONDS)
        assert replica.trouble == ""
        server.stop()
        wait_until(lambda: not controller.replicas())
        assert replica.trouble != ""
        again = listen(reconciler, server.address)
        assert is_welcomed.acquire(timeout=PATIENCE_SECONDS)
        replica.close()
        assert controller.replicas() == {}
        again.stop()
    assert welcomes == ["one one", "one one"]


def test_clients_without_the_token_are_refused(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    controller = Controller(1, Nothing())
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", Security("secret"))
        replica = RemoteReplica(controller, "one", server.address, Security("guess"), loop)
        wait_until(lambda: replica.trouble == "the token is wrong")
        replica.close()
        server.stop()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("said", SILENCES)
def test_silent_connections_do_not_block_a_controller(
    said: str, tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """They are as many as an instance accepts, and more, and it closes them."""
    is_welcomed = threading.Event()
    controller = Controller(1, Nothing(), on_welcome=lambda name, welcome: is_welcomed.set())
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN, silent_seconds=_SILENT_SECONDS)
        with silent(server.address, 100, SILENCES[said]) as connections:
            replica = RemoteReplica(controller, "one", server.address, OPEN, loop)
            assert is_welcomed.wait(PATIENCE_SECONDS)
            await_ends(connections)
        assert replica.trouble == ""
        replica.close()
        server.stop()


@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.1])
def test_sessions_have_ended_when_the_server_has_stopped(
    delay: float, tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_GRACE_SECONDS", 0)
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        replicas = [RemoteReplica(Controller(1, Nothing()), "one", server.address, OPEN, loop) for _ in range(8)]
        time.sleep(delay)  # sessions are at different steps of their start
        end = server._end
        remaining: list[asyncio.Task[object]] = []

        def ending() -> None:
            remaining.extend(asyncio.all_tasks(server._loop))
            end()

        monkeypatch.setattr(server, "_end", ending)
        server.stop()
        for replica in replicas:
            replica.close()
    assert remaining == []


def test_used_address_is_reported(tmp_path: Path) -> None:
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        with pytest.raises(UsageError, match=f"cannot listen at {server.address}"):
            InstanceServer(reconciler, server.address, OPEN)
        server.stop()


def test_a_refusal_is_reported_in_every_session(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    troubles: set[str] = set()
    controller = Controller(1, Nothing(), folder="another")
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        for _ in range(20):
            replica = RemoteReplica(controller, "one", server.address, OPEN, loop)
            wait_until(partial(_is_tried, replica))
            troubles.add(replica.trouble)
            replica.close()
        server.stop()
    assert troubles == {"the instance serves another data folder (start the instance with --data of this folder)"}


def test_unsendable_command_is_reported_and_the_connection_renewed(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def tell(_: object, context: dict[str, Any]) -> None:
        # gRPC reports here, too, that a loop of an earlier test is closed, because all loops share a queue of events
        if "PollerCompletionQueue" not in context["message"]:
            told.append(f"{context['message']}: {context['exception']}")

    loop.set_exception_handler(tell)
    is_welcomed, defects = threading.Event(), [ValueError("no such text")]

    def failing(command: Command) -> pb.ComputeCommand:
        if isinstance(command, InitializationComplete) and defects:
            raise defects.pop()
        return command_message(command)

    monkeypatch.setattr(remote, "command_message", failing)
    controller = Controller(1, Nothing(), on_welcome=lambda name, welcome: is_welcomed.set())
    with reconciling(tmp_path) as reconciler:
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        replica = RemoteReplica(controller, "one", server.address, OPEN, loop)
        assert is_welcomed.wait(PATIENCE_SECONDS)
        replica.close()
        server.stop()
    assert told == ["replica one is connected again, after an internal error: no such text"]


def test_internal_error_of_an_instance_is_reported_at_both_ends(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(session: Session, command: Command) -> None:
        raise ValueError("no such command")

    with reconciling(tmp_path) as reconciler:
        monkeypatch.setattr(reconciler, "accept", failing)
        server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
        told: list[str] = []
        server._loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        replica = RemoteReplica(Controller(1, Nothing()), "one", server.address, OPEN, loop)
        wait_until(lambda: replica.trouble == "ValueError: no such command")
        replica.close()
        server.stop()
    assert told[0] == "no such command"
