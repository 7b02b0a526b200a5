"""A network with a delay: a proxy, as a process of its own, that forwards each message after a time.

`python -m bench.slow_network PORT DELAY` prints the port of the proxy. It forwards connections to `PORT` of this
machine, and delays each direction by `DELAY` milliseconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bench.process import end

_CHUNK = 1 << 16


@contextmanager
def delayed(port: int, milliseconds: float) -> Iterator[int]:
    """Yield the port of a proxy before a port of this machine."""
    program = [sys.executable, "-m", "bench.slow_network", str(port), str(milliseconds)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            end(process)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Write what arrives after a time, in order, without waiting for it in between."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)


async def _serve(port: int, seconds: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_forward(reader, server[1], seconds), _forward(server[0], writer, seconds))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as proxy:
        print(proxy.sockets[0].getsockname()[1], flush=True)
        await proxy.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1000))
