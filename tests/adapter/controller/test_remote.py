"""A controller's connection to an instance in another process ends when it is told to, also as it has just begun."""

from __future__ import annotations

import threading
from pathlib import Path

from test_lagging_tail import Nothing
from typing_extensions import override

from derive.adapter.controller.controller import Controller
from derive.adapter.controller.remote import RemoteReplica
from derive.compute.instance import Instance
from derive.compute.protocol.security import OPEN, Security
from derive.compute.reconciler import Reconciler
from derive.compute.serving import InstanceServer
from derive.compute.session import Identity


class Slow(Security):
    """Is asked for while a connection is made, and answers once that is to be closed."""

    closing = threading.Event()

    @property
    @override
    def metadata(self) -> tuple[tuple[str, str], ...]:
        assert self.closing.wait(60)
        return ()


def test_a_connection_that_is_closed_while_it_is_made_ends(tmp_path: Path) -> None:
    reconciler = Reconciler(
        Instance(tmp_path),
        lambda dataflow, as_of: {},
        lambda instance, identifiers: None,
        identity=Identity("one"),
        run=lambda task: task(),
        wake=lambda: None,
    )
    server = InstanceServer(reconciler, "127.0.0.1:0", OPEN)
    security = Slow()
    replica = RemoteReplica(Controller(1, Nothing()), "one", server.address, security)
    closing = threading.Thread(target=replica.close, daemon=True)
    closing.start()
    assert replica._closed.wait(60)
    security.closing.set()
    closing.join(60)
    has_ended = not closing.is_alive()
    server.stop()
    closing.join()
    reconciler.close()
    assert has_ended
