"""A network between a controller and its instances that cuts, delays, refuses and swallows what passes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from patience import PATIENCE_SECONDS

T = TypeVar("T")

_CHUNK = 1 << 16


class Network:
    """A thread in which proxies are at work.

    Attributes:
        servers: of proxies.
    """

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all proxies."""
        self.do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, act: Callable[[], Awaitable[T]]) -> T:
        """Have something done in that thread."""

        async def acted() -> T:
            return await act()

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result(PATIENCE_SECONDS)

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """An address of its own, from which connections go on to wherever an instance is.

    Args:
        network: where it is at work.
        chance: how long each chunk is delayed, of what is possible.

    Attributes:
        port: of this machine, where it listens.
        target: the port of this machine that it stands for.
        delay: seconds that each chunk takes, at most.
        is_refusing: whether connections are closed as soon as they come.
    """

    def __init__(self, network: Network, chance: random.Random) -> None:
        self._network, self._chance = network, chance
        self.target, self.delay, self.is_refusing = 0, 0.0, False
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_open = (asyncio.Event(), asyncio.Event())
        self.port = network.do(self._listen)
        self.release()

    def cut(self) -> None:
        """Reset all connections."""

        async def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._network.do(abort)

    def hold(self, *, down: bool, up: bool) -> None:
        """Let nothing pass towards the instance, or from it, until `release`."""

        async def clear() -> None:
            for is_held, is_open in zip((down, up), self._is_open, strict=True):
                if is_held:
                    is_open.clear()

        self._network.do(clear)

    def release(self) -> None:
        """Let pass what was held, and what comes."""

        async def open_() -> None:
            for is_open in self._is_open:
                is_open.set()

        self._network.do(open_)

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._network.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        try:
            if self.is_refusing:
                return
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)
            writers.add(onward_writer)
            self._writers |= writers
            down, up = self._is_open
            pumps = [
                asyncio.create_task(self._pump(reader, onward_writer, down)),
                asyncio.create_task(self._pump(onward_reader, writer, up)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # nobody is there; or this is the end
        finally:
            self._writers -= writers
            for end in writers:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await is_open.wait()
                if self.delay:
                    await asyncio.sleep(self._chance.random() * self.delay)
                writer.write(data)
                await writer.drain()
