"""The capability to serve SQL: one process has it, a silent one loses it, and a woken one commits nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from derive.errors import FencedError, SqlError
from derive.sql.transactions.ownership import Ownership
from derive.storage.capability.table import LIFETIME
from derive.storage.metadata.process import boot, this_process
from derive.storage.store import Store

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]
FENCED, FAILED = 3, 4


def opened(root: Path) -> Store:
    return Store(root / "data", durable=False)


def lapse(store: Store, *, process: str | None = None) -> None:
    """Let the capability expire, perhaps of a process that is not visible here."""
    with store.metadata.transaction() as db:
        db.execute("UPDATE capability SET expires = ?, holder = coalesce(?, holder)", (db.now() - 1, process))


def in_a_fork(work: Callable[[], None]) -> int:
    """Do some work in another process, and return its number."""
    child = os.fork()
    if not child:
        status = FAILED
        try:
            work()
            status = 0
        except FencedError:
            status = FENCED
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    return child


def test_one_process_serves_until_it_releases(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as first, closing(opened(tmp_path)) as second:
        assert (first.serving.was_ever_held(), first.serving.holder(), first.serving.epoch) == (False, None, None)
        assert first.serving.acquire()
        assert first.serving.acquire()
        assert not second.serving.acquire()
        first.serving.announce("127.0.0.1:6875")
        holder = second.serving.holder()
        assert holder is not None
        assert (holder.process, holder.address) == (this_process(), "127.0.0.1:6875")
        assert 0 < holder.seconds <= LIFETIME / 1e6
        second.seal_now([])  # no server is fenced by a process that does not get the capability
        first.seal_now([])

        first.serving.release()
        assert (second.serving.was_ever_held(), second.serving.holder()) == (True, None)
        assert second.serving.acquire()
        assert (first.serving.epoch, second.serving.epoch) == (None, 2)
        with pytest.raises(FencedError):
            first.serving.acquire()
        second.serving.release()


@pytest.mark.parametrize("process", [None, "elsewhere:7:pid/1:99"])
def test_silent_process_is_fenced_by_the_next(tmp_path: Path, process: str | None) -> None:
    """Whether its process is on another machine, or visible and stopped."""
    with closing(opened(tmp_path)) as first, closing(opened(tmp_path)) as second:
        assert first.serving.acquire()
        lapse(second, process=process)
        assert second.serving.holder() is None
        assert second.serving.acquire()
        with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
            first.seal_now([])
        first.serving.release()
        assert second.serving.holder() is not None
        second.seal_now([])


def test_process_of_a_suspended_machine_continues_if_no_other_has_begun(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as server, closing(opened(tmp_path)) as other:
        server.serving.acquire()
        server.serving.announce("here:1")
        capability = server.serving._capability
        assert capability is not None
        lapse(other)
        other.task_capabilities.runs([])  # drops what has expired
        assert other.serving.holder() is None
        with closing(server.metadata.another()) as metadata, metadata.transaction() as db:
            server.serving._renew([capability.id], db)
        holder = other.serving.holder()
        assert holder is not None
        assert holder.address == "here:1"
        assert not other.serving.acquire()

        lapse(other)
        assert other.serving.acquire()
        with closing(server.metadata.another()) as metadata, pytest.raises(FencedError), metadata.transaction() as db:
            server.serving._renew([capability.id], db)
        assert server.fence.is_superseded()
        other.serving.release()
        assert other.serving.holder() is None
        server.serving.release()


def test_killed_server_is_replaced_at_once(tmp_path: Path) -> None:
    def work() -> None:
        opened(tmp_path).serving.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    opened(tmp_path).close()
    os.waitpid(in_a_fork(work), 0)
    with closing(opened(tmp_path)) as store:
        assert store.serving.holder() is None
        assert store.serving.acquire()
        assert store.serving.epoch == 2
        store.serving.release()


def copy_over(file: Path) -> None:
    """Replace a file by a copy."""
    former = file.rename(f"{file}.former")
    shutil.copy(former, file)


ELSEWHERE = f"container:7:{boot()}/1:99"


@pytest.mark.parametrize(
    ("number", "process", "disturb", "is_replaced"),
    [
        (signal.SIGKILL, ELSEWHERE, lambda _: None, True),
        (signal.SIGSTOP, ELSEWHERE, lambda _: None, False),
        (signal.SIGKILL, "machine:7:other/1:99", lambda _: None, False),
        # in a folder of another container, or in a copy of the folder
        (signal.SIGKILL, ELSEWHERE, lambda file: file.unlink(), False),
        (signal.SIGKILL, ELSEWHERE, copy_over, False),
    ],
)
def test_killed_server_of_another_container_is_replaced_at_once(
    tmp_path: Path, number: int, process: str, disturb: Callable[[Path], object], is_replaced: bool
) -> None:
    """The lock on a file of the folder proves the end of a process that is not visible; nothing else does."""

    def work() -> None:
        opened(tmp_path).serving.acquire()
        os.kill(os.getpid(), number)

    opened(tmp_path).close()
    child = in_a_fork(work)
    os.waitpid(child, os.WUNTRACED)
    with closing(opened(tmp_path)) as store:
        with store.metadata.transaction() as db:
            db.execute("UPDATE capability SET holder = ?", (process,))
        (file,) = (tmp_path / "data").glob("serving-*.lock")
        disturb(file)
        assert (store.serving.holder() is None) is is_replaced
        assert store.serving.acquire() is is_replaced
        assert not (is_replaced and file.exists())
        store.serving.release()
    if number == signal.SIGSTOP:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_stopped_server_is_taken_over_and_fenced(tmp_path: Path) -> None:
    """The error of another server names the stopped process, until its capability expires."""

    def work() -> None:
        with closing(opened(tmp_path)) as store:
            store.serving.acquire()
            os.kill(os.getpid(), signal.SIGSTOP)
            store.seal_now([])

    opened(tmp_path).close()
    first = in_a_fork(work)
    os.waitpid(first, os.WUNTRACED)
    with closing(opened(tmp_path)) as store:
        with pytest.raises(SqlError, match="another flowctl serves SQL over this data folder") as caught:
            Ownership(store).require()
        ways = rf"let it continue \(kill -CONT {first}\), or end it \(kill -KILL {first}\)"
        hint = rf"That process is stopped: {ways}\. If it stays stopped, try again in \d+ s\."
        assert caught.value.hint is not None
        assert re.fullmatch(hint, caught.value.hint)
        lapse(store)
        assert Ownership(store).require() == 2
        os.kill(first, signal.SIGCONT)
        _, status = os.waitpid(first, 0)
        assert os.waitstatus_to_exitcode(status) == FENCED
        store.seal_now([])
        store.serving.release()


def test_reader_compares_the_epoch_once_its_renewals_are_late(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as server, closing(opened(tmp_path)) as other:
        other.serving.check()
        assert server.serving.acquire()
        server.serving._renewed_at -= LIFETIME
        server.serving.check()
        lapse(other)
        assert other.serving.acquire()
        with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
            server.serving.check()
        other.serving.check()
        other.serving.release()
        server.serving.release()
