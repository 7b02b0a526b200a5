"""Sessions of Python modules: results, state, errors with their places, limits, and the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from forked_flowctl import UNFORKED
from python_derivation import CLOCK, HEAD, derivation, invoke, lambdas, open_session, run

from connectors.derive_python import PythonConnector
from connectors.derive_python.config import Permissions, ProjectFile, config_of
from connectors.derive_python.runtime.project import HARNESS
from derive.errors import LambdaError
from derive.protocol.derive import Level, PublishedColumns, ReadBatch
from derive.protocol.specs import DerivationSpec, Document, LambdaLimits

pytestmark = [pytest.mark.xdist_group("python modules"), pytest.mark.usefixtures("empty_pool")]

FORMS = """
    async def as_async_generator(self, read: Any) -> AsyncIterator[Document]:
        yield Document(id=1)
        await asyncio.sleep(1_000_000)
        yield Document(id=2)
    async def as_coroutine(self, read: Any) -> Any:
        await asyncio.gather(asyncio.sleep(3), asyncio.sleep(2))
        return [{"id": 3}]
    def as_generator(self, read: Any) -> Any:
        yield {"id": 4}
    def as_list(self, read: Any) -> Any:
        return [Document(id=5), {"id": 6}]
    def as_document(self, read: Any) -> Any:
        return {"id": 7}
    def as_nothing(self, read: Any) -> Any:
        print("nothing for", read.doc.id, read.published_at, read.now)
"""


def test_methods_return_yield_or_await_documents() -> None:
    transforms = ["asAsyncGenerator", "asCoroutine", "asGenerator", "asList", "asDocument", "asNothing"]
    text = f"import asyncio\nfrom collections.abc import AsyncIterator\n{HEAD}class Derivation(IDerivation):{FORMS}"
    logged: list[tuple[Level, str]] = []
    session = open_session(derivation(text, *transforms), lambda level, message: logged.append((level, message)))
    published = invoke(session, [{"id": 9}] * 6, list(range(6)))
    session.close()
    assert [(cause, document["id"]) for cause, document in published] == [
        (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (3, 6), (4, 7),
    ]  # fmt: skip
    at = "2023-11-14 22:13:20.123456+00:00"
    assert logged == [("info", f"nothing for 9 {at} {at}  (transform 'asNothing', document {{\"id\":9}})")]


# body, beginning of the message after the transform, line and column
FAILURES = [
    ("import sys\nsys.exit(3)", "SystemExit: 3", 6, 9),
    ("def f(n: int) -> Any:\n    return f(n - 1) if n else 1 / 0\nf(3)", "ZeroDivisionError: division by zero", 6, 39),
    ("return {'id': read.doc.nosuch}", "AttributeError: 'SourceFromIn' object has no attribute 'nosuch'", 5, 23),
    ("return [5]", "TypeError: the method published a value of type 'int', which is no document", 4, 9),
    ("return {'id': float('nan')}", "/id of the published document is a number beyond a double's range", 4, 9),
    ("open('/etc/passwd').read()", "PermissionError: [Errno 13] Permission denied: '/etc/passwd'", 5, 9),
    ("open('/tmp/written', 'w')", "PermissionError: [Errno 13] Permission denied: '/tmp/written'", 5, 9),
    ("import os\nos.fork()", "PermissionError: [Errno 1] Operation not permitted", 6, 9),
    ("import subprocess\nsubprocess.run(['ls'])", "PermissionError: [Errno 1] Operation not permitted", 6, 9),
    ("import os\nos.kill(os.getppid(), 9)", "PermissionError: [Errno 1] Operation not permitted", 6, 9),
    ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "PermissionError: [Errno 1]", 6, 9),
    ("import asyncio\nasync def f() -> Any:\n    await asyncio.Future()\nreturn f()", "EndlessWaitError: the", 4, 9),
    ("async def f() -> Any:\n    1 / 0\nasync def g() -> Any:\n    import asyncio\n    async with asyncio.TaskGroup() as t: t.create_task(f())\nreturn g()", "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ZeroDivisionError: division by zero", 6, 13),
    ("all: Any = []\nwhile True: all.append(b'x' * 50_000_000)", "MemoryError", 6, 32),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("body", "reason", "line", "column"), FAILURES)
def test_error_of_a_method_has_its_place_and_document(body: str, reason: str, line: int, column: int) -> None:
    spec = replace(lambdas(body), limits=LambdaLimits(python_megabytes=600))
    with pytest.raises(LambdaError) as caught:
        run(spec, [{"id": 1}])
    assert caught.value.message.startswith(f"transform 'fromIn' of 'acme/out' failed: {reason}")
    assert caught.value.message.endswith('; the document was {"id":1}')
    position = caught.value.position
    assert position is not None
    assert (position.file, position.line, position.column) == ("acme.py", line, column)


# body, beginning of the message, and the line that ran
ENDINGS = [
    (
        "while True: pass",
        "transform 'fromIn' of 'acme/out' gave no answer within 1 s, so its process was stopped",
        "5:9",
    ),
    (
        "import os\nos._exit(0)",
        "the Python module of 'acme/out' ended with status 0: Stack (most recent call first):\n  acme.py:6:9 in from_in",
        "6:9",
    ),
    (
        "import ctypes\nctypes.string_at(0)",
        "the Python module of 'acme/out' ended with status -11: Fatal Python",
        "6:9",
    ),
    (
        "import os\nos.closerange(3, 100)",
        "the Python module of 'acme/out' closed the pipes of the runtime, so its process was stopped",
        "4:9",
    ),
    (
        "import os\nos.closerange(3, 100)\nwhile True: pass",
        "the Python module of 'acme/out' closed the pipes of the runtime, so its process was stopped",
        "4:9",
    ),
    ("import signal\nsignal.raise_signal(10)", "the Python module of 'acme/out' ended with status -10", "4:9"),
]


@pytest.mark.parametrize(("body", "message", "place"), ENDINGS)
def test_module_that_hangs_or_ends_its_process_is_reported(body: str, message: str, place: str) -> None:
    spec = replace(lambdas(body), limits=LambdaLimits(python_seconds=1))
    with pytest.raises(LambdaError) as caught:
        run(spec, [{"id": 1}, {"id": 2}])
    document = '; the document was {"id":1}, or the one after it'
    assert caught.value.message == caught.value.title + document
    assert caught.value.title.startswith(message)
    assert str(caught.value.position) == f"acme.py:{place}"


CLASSES = [
    ("class Other: pass", "TypeError: the module defines no class 'Derivation'"),
    ("class Derivation(IDerivation): pass", "TypeError: the class 'Derivation' has no method 'from_in'"),
    ("import nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
    ("def f(:", "SyntaxError: invalid syntax"),
]


@pytest.mark.parametrize(("text", "reason"), CLASSES)
def test_module_that_cannot_start_is_reported(text: str, reason: str) -> None:
    with pytest.raises(LambdaError) as caught:
        run(derivation(HEAD + text + "\n"), [{"id": 1}])
    assert caught.value.message.startswith(f"the Python module of 'acme/out' cannot start: {reason}")
    if "Syntax" in reason or "nosuch" in reason:
        assert caught.value.position is not None
        assert caught.value.position.line == 3


CHANCE = """
import datetime, os, random, secrets, time, uuid
import numpy as np
values = [random.random(), random.choice(range(1000)), random.Random().random(), str(uuid.uuid4()), str(uuid.uuid1())]
values += [secrets.token_hex(4), os.urandom(4).hex(), np.random.rand(), np.random.default_rng().random()]
times = [time.time(), time.time_ns(), str(datetime.datetime.now()), str(datetime.date.today()), time.strftime("%H:%M")]
return {"id": read.doc.id, "values": values, "times": times, "hash": hash("a")}
"""


def test_l1_time_and_random_values_follow_the_document() -> None:
    documents: Sequence[Document] = [{"id": number} for number in range(3)]
    first = run(lambdas(CHANCE), documents)
    again = [run(lambdas(CHANCE), [document])[0][1] for document in reversed(documents)]
    assert [document for _, document in first] == again[::-1]
    assert first[0][1]["times"] == [
        1700000000.123456,
        1700000000123456000,
        "2023-11-14 22:13:20.123456",
        "2023-11-14",
        "22:13",
    ]
    for one, other in zip(first[0][1]["values"], first[1][1]["values"], strict=True):
        assert one != other


def test_l1_imported_modules_have_random_values_of_their_own() -> None:
    files = (
        ProjectFile("outer.py", b"import random\nfrom inner import VALUE\nVALUES = [random.random(), VALUE]\n"),
        ProjectFile("inner.py", b"import random\nVALUE = random.random()\n"),
    )
    body = "import random\nbefore = [random.random() for _ in range({})]\nimport outer\nreturn {{'id': outer.VALUES}}"
    first, other = (run(lambdas(body.format(count), files=files), [{"id": count}])[0][1] for count in (0, 1))
    assert first == other
    assert len(set(first["id"])) == 2


def test_l1_hashes_are_equal_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*next(iter(UNFORKED.items())))  # forks of one process have its hashes
    body = "return {'id': hash('a'), 'order': list({'a', 'b', 'c', 'd', 'e'})}"
    assert run(lambdas(body), [{"id": 1}]) == run(lambdas(f"{body}  # in another process"), [{"id": 1}])


def commit(session: Any, database: apsw.Connection) -> None:
    session.prepare_commit()
    session.close()


def values(spec: DerivationSpec, database: apsw.Connection, documents: Sequence[Document]) -> list[Any]:

    session = PythonConnector().open(spec, database, lambda level, message: None)
    published = [document["n"] for _, document in invoke(session, documents)]
    commit(session, database)
    return published


def test_state_is_kept_per_shuffle_key(tmp_path: Path) -> None:
    (tmp_path / "shard" / "attempt").mkdir(parents=True)
    database = apsw.Connection(str(tmp_path / "shard" / "attempt" / "state.db"))
    body = """
        self.state["n"] = self.state.get("n", 0) + 1
        if read.doc.id == 3:
            self.state = {}
        return {"id": read.doc.id, "n": self.state.get("n")}
    """
    spec = lambdas(body)
    assert values(spec, database, [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 3}, {"id": 1.0}]) == [1, 1, 2, None, 3]
    assert values(spec, database, [{"id": 2}, {"id": 1}, {"id": 3}]) == [2, 4, None]
    stored = list(database.execute("SELECT * FROM flow_python_keys ORDER BY key"))
    assert stored == [("[1]", '{"n":4}'), ("[2]", '{"n":2}')]


STATES = {
    "start_commit": """
        def __init__(self, open: Request.Open) -> None:
            self.total = open.state.get("total", 0)
        def start_commit(self, start_commit: Request.StartCommit) -> Any:
            return Response.StartedCommit(state=ConnectorState(updated={"total": self.total}, merge_patch=True))
    """,
    "flush": """
        def __init__(self, open: Request.Open, config: Any) -> None:
            self.total = open.state.get("total", 0)
        async def flush(self, state_patches: list[Any], flushed: Response.Flushed) -> Any:
            flushed.state = ConnectorState(updated={"total": self.total})
    """,
}


@pytest.mark.parametrize("form", STATES)
def test_state_of_a_module_is_kept(form: str, tmp_path: Path) -> None:
    (tmp_path / "shard" / "attempt").mkdir(parents=True)
    database = apsw.Connection(str(tmp_path / "shard" / "attempt" / "state.db"))
    spec = lambdas("self.total += read.doc.id\nreturn {'id': read.doc.id, 'n': self.total}\n", STATES[form])
    for expected in ([1, 3], [4, 6]):
        session = PythonConnector().open(spec, database, lambda level, message: None)
        assert session.flushes == (form == "flush")
        documents: list[Document] = [{"id": 1}, {"id": 2}]
        transforms = [0, 0]
        if session.flushes:
            documents, transforms = [*documents, {}], [0, 0, 1]
        assert [document["n"] for _, document in invoke(session, documents, transforms)] == expected
        commit(session, database)


def test_failed_documents_are_undone(tmp_path: Path) -> None:
    (tmp_path / "shard" / "attempt").mkdir(parents=True)
    database = apsw.Connection(str(tmp_path / "shard" / "attempt" / "state.db"))
    body = """
        self.state["n"] = self.state.get("n", 0) + 1
        if read.doc.bad:
            raise ValueError("bad")
        return {"id": read.doc.id, "n": self.state["n"]}
    """
    spec = lambdas(body)
    spec = replace(spec, transforms=tuple(replace(each, quarantines=True) for each in spec.transforms))

    session = PythonConnector().open(spec, database, lambda level, message: None)
    good: Document = {"id": 1, "bad": False}
    assert invoke(session, [good, good])[-1][1]["n"] == 2
    session.mark()
    with pytest.raises(LambdaError, match="ValueError: bad"):
        invoke(session, [good, {"id": 1, "bad": True}])
    session.undo()
    assert session.state() == {"[1]": {"n": 2}}
    assert invoke(session, [good])[0][1]["n"] == 3
    assert session.state() == {"[1]": {"n": 3}}
    session.close()


def test_permissions_and_settings_reach_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANTED", "yes")
    monkeypatch.setenv("SECRET", "no")
    (tmp_path / "list.txt").write_text("content")
    permissions = Permissions(read=(str(tmp_path),), env=("GRANTED",))
    body = f"import os\nreturn {{'id': open({str(tmp_path / 'list.txt')!r}).read(), 'env': [os.environ['GRANTED'], 'SECRET' in os.environ], 'c': self.c}}"
    members = "def __init__(self, open: Request.Open, config: Any) -> None:\n    self.c = config.rate\n"
    schema = {"type": "object", "properties": {"rate": {"type": "number"}}}
    spec = lambdas(body, members, permissions=permissions, config={"rate": 2.5}, config_schema=schema)
    with pytest.raises(LambdaError, match="asks for permissions: read"):
        run(spec, [{"id": 1}])
    granted = replace(spec, limits=LambdaLimits(allows_permissions=True))
    assert run(granted, [{"id": 1}]) == [(0, {"id": "content", "env": ["yes", False], "c": 2.5})]


def test_output_of_a_module_goes_to_the_log_with_level_and_document() -> None:
    logged: list[tuple[Level, str]] = []
    body = "import logging, os\nos.write(1, b'raw')\nprint('a\\nb')\nlogging.error('c %s', 1)\nprint('d', file=sys.stderr)\nreturn {'id': 1}"
    members = "def __init__(self, open: Any) -> None:\n    print('e')\n@arrow\ndef by_column(self, batch: Any) -> Any:\n    print('f')\n    return batch\n"
    text = lambdas(body, members, "import sys\nfrom acme.out import arrow\nprint('g', file=sys.stderr)\n")
    spec = derivation(config_of(text).module.text, "fromIn", "byColumn")
    session = open_session(spec, lambda level, message: logged.append((level, message)))
    long = "x" * 600
    assert invoke(session, [{"id": 1, "text": long}]) == [(0, {"id": 1})]
    invoke(session, [{"id": 2}], [1])
    session.close()
    place = f"""  (transform 'fromIn', document {{"id":1,"text":"{long[:484]}…)"""
    expected = [("info", "a"), ("info", "b"), ("error", "c 1"), ("warn", "d")]
    assert logged == [
        ("warn", "g"),
        ("info", "e"),
        *((level, message + place) for level, message in expected),
        ("info", "f  (transform 'byColumn')"),
    ]


def test_process_of_a_module_serves_the_next_transaction() -> None:
    spec = lambdas("import os\nreturn {'id': os.getpid()}")
    assert run(spec, [{"id": 1}]) == run(spec, [{"id": 1}])


def test_sandbox_names_the_restrictions_that_the_kernel_lacks() -> None:
    """The task's log has these lines; the restrictions are replaced, because this kernel may offer them."""
    script = (
        "from flow_harness import sandbox\n"
        "sandbox._restrict_files = sandbox._restrict_calls = lambda *_, **__: False\n"
        "print(*sandbox.enter([], network=False), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=HARNESS)
    assert done.stdout.splitlines() == [
        "files are not restricted, because the kernel has no Landlock",
        "processes and the network are not restricted, because the kernel has no seccomp",
    ]


def test_files_of_the_project_are_imported() -> None:
    files = (ProjectFile("helpers/__init__.py", b""), ProjectFile("helpers/rates.py", b"RATE = 3\ndef fail(): 1 / 0\n"))
    head = "from helpers.rates import RATE, fail\n"
    spec = lambdas("if read.doc.id == 2: fail()\nreturn {'id': RATE}", head=head, files=files)
    assert run(spec, [{"id": 1}]) == [(0, {"id": 3})]
    with pytest.raises(LambdaError) as caught:
        run(spec, [{"id": 2}])
    assert str(caught.value.position) == os.path.join("helpers", "rates.py:2:13")


def test_long_frames_are_answered_in_parts() -> None:
    spec = lambdas("import time\nfor _ in range(300_000): pass\nreturn {'id': read.doc.id}")
    clocks = [CLOCK + number for number in range(120)]
    session = open_session(replace(spec, limits=LambdaLimits(python_seconds=5)))
    batch = ReadBatch([0] * 120, clocks, clocks, [{"id": number} for number in range(120)])
    assert [document["id"] for _, document in session.invoke(batch)] == list(range(120))
    session.close()


def test_waits_end_at_any_time_of_the_loop() -> None:
    body = "import asyncio\nasync def f() -> Any:\n    await asyncio.sleep(1_000_000 + read.doc.id / 7)\n    return {'id': read.doc.id}\nreturn f()"
    assert len(run(lambdas(body), [{"id": number} for number in range(500)])) == 500


def test_structs_of_msgspec_are_read_and_published() -> None:
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "a-b": {"type": "string"}},
    }
    body = "doc = read.doc\nreturn [Document(id=doc.id, a_b=doc.a_b), {'id': 7}] if doc.id == 2 else [doc]"
    text = lambdas(body).connector_config.module.text
    spec = derivation(text, schema=schema, models="msgspec")
    documents: list[Document] = [{"id": 1, "a-b": "x"}, {"id": 1.0}, {"id": 2, "other": 1}, {"id": 3, "a-b": "y"}]
    expected = [
        (0, {"id": 1, "a-b": "x"}),
        (1, {"id": 1.0}),
        (2, {"id": 2}),
        (2, {"id": 7}),
        (3, {"id": 3, "a-b": "y"}),
    ]
    assert run(spec, documents) == expected
    session = open_session(spec)
    clocks = [CLOCK] * 4
    columns = session.invoke_columns(ReadBatch([0] * 4, clocks, clocks, documents))
    assert columns is not None
    published = [
        pair
        for part in columns
        for pair in zip(
            part.causes, part.columns.documents() if isinstance(part, PublishedColumns) else part.documents, strict=True
        )
    ]
    session.close()
    assert published == expected


ESCAPES = """
import ctypes, fcntl, os, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
parent, file = os.getppid(), os.path.abspath("acme_module.py")
reader, _ = os.pipe()
attempts = {
    "limits": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (9, 9)),
    "owner": lambda: fcntl.fcntl(reader, fcntl.F_SETOWN, parent),
    "owner by ioctl": lambda: fcntl.ioctl(reader, 0x8901, struct.pack("i", parent)),
    "lease": lambda: fcntl.fcntl(os.open(file, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "datagrams": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "truncate": lambda: os.truncate(file, 0),
    "mode": lambda: called(libc.syscall(452, -100, file.encode(), 0o777, 0)),
    "times": lambda: os.utime(file),
    "segments": lambda: called(libc.shmctl(999_999, 0, None)),
    "queues": lambda: called(libc.msgctl(999_999, 0, None)),
    "semaphores": lambda: called(libc.semctl(999_999, 0, 0)),
    "watch": lambda: called(libc.inotify_init1(0)),
    "scheduling": lambda: os.sched_setscheduler(parent, os.SCHED_BATCH, os.sched_param(0)),
    "session": os.setsid,
    "memory": lambda: open("/proc/self/mem"),
    "environment": lambda: open(f"/proc/{parent}/environ"),
}
succeeded = []
for name, attempt in attempts.items():
    try:
        attempt()
    except PermissionError:
        continue
    except OSError as error:
        succeeded.append(f"{name}: {error}")
    else:
        succeeded.append(name)
a, b = socket.socketpair()
a.send(b"x")
return {"id": succeeded, "pair": b.recv(1).decode(), "own": len(resource.getrlimit(resource.RLIMIT_NOFILE))}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Landlock and seccomp")
def test_sandbox_refuses_calls_that_reach_files_and_other_processes() -> None:
    assert run(lambdas(ESCAPES), [{"id": 1}]) == [(0, {"id": [], "pair": "x", "own": 2})]


NOISES = {
    "threads": """
        import threading
        def tell() -> None:
            for _ in range(50): print("y" * 9000)
        threads = [threading.Thread(target=tell) for _ in range(3)]
        for thread in threads: thread.start()
        tell()
        for thread in threads: thread.join()
        """,
    "a thread that outlives the method": """
        import threading
        ended = threading.Event()
        threading.Thread(target=ended.wait).start()
        print("y")
        """,
    "one line": "for _ in range(300_000): print('y' * 50, end='')",
    "replaced functions": "import json, os, sys\njson.dumps = os.write = None\nsys.stdout.writelines(['y'])\nsys.stdout.close()",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("noise", NOISES)
def test_module_that_writes_much_is_answered(noise: str) -> None:
    logged: list[str] = []
    spec = replace(
        lambdas(f"{textwrap.dedent(NOISES[noise])}\nprint()\nreturn read.doc"), limits=LambdaLimits(python_seconds=20)
    )
    assert run(spec, [{"id": 1}], lambda level, message: logged.append(message)) == [(0, {"id": 1})]
    assert {character for message in logged for character in message.split("  (")[0]} == {"y"}


FORGED = [
    ("L", '"garbage'),
    ("L", "5"),
    ("Q", "{"),
    ("A", '{"error":{"index":9,"message":"","stack":""}}'),
    ("A", '{"error":{"index":[],"message":"","stack":""}}'),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "text"), FORGED)
def test_module_that_forges_frames_stops_its_own_task(kind: str, text: str) -> None:
    body = f"import sys\nsys.stdout._frames.send({kind.encode()!r}, {text.encode()!r})\nreturn []"
    with pytest.raises(LambdaError, match="wrote to standard output|sent an unexpected answer"):
        run(lambdas(body), [{"id": 1}])


ERRORS = [
    (
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "E: its text cannot be shown (ValueError)",
    ),
    ("e, f = ValueError('e'), ValueError('f')\ne.__cause__, f.__cause__ = f, e\nraise e", "ValueError: e"),
    ("raise ValueError('a\\ud800b')", "ValueError: a?b"),
]


@pytest.mark.parametrize(("body", "message"), ERRORS)
def test_errors_without_a_text_or_with_cyclic_causes_are_reported(body: str, message: str) -> None:
    with pytest.raises(LambdaError) as caught:
        run(lambdas(body), [{"id": 1}])
    assert caught.value.message.startswith(f"transform 'fromIn' of 'acme/out' failed: {message}; the document")


def test_l1_normal_values_follow_the_document() -> None:
    body = "import random\nreturn {'id': [random.gauss(0, 1), random.getstate()[1][0], random.gauss(0, 1), random.gauss(0, 1)]}"
    documents: list[Document] = [{"id": 1}, {"id": 2}]
    assert run(lambdas(body), documents)[1][1] == run(lambdas(body), documents[1:])[0][1]


NO_JSON = ["{1}", "(1, 2)", "float('nan')", "{1: 2}", "[read.now]", "read.doc"]


def test_state_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard" / "attempt").mkdir(parents=True)
    database = apsw.Connection(str(tmp_path / "shard" / "attempt" / "state.db"))
    text = f"self.state['n'] = [1.0, 10**30, None, {', '.join(NO_JSON)}][read.doc.id]"
    for number in range(9):
        session = PythonConnector().open(lambdas(text), database, lambda level, message: None)
        invoke(session, [{"id": number}])
        if number < 3:
            session.prepare_commit()
        else:
            with pytest.raises(
                LambdaError, match=rf"self.state\['n'\] of key \[{number}\] has a value that JSON cannot"
            ):
                session.prepare_commit()
        session.close()


UNMENTIONED = [
    ("getattr(self, 'sta' + 'te')['n'] = 1", "", "self.state"),
    ("pass", "import lib\nIDerivation: Any = lib.Base\n", "start_commit"),
]


@pytest.mark.parametrize(("body", "head", "name"), UNMENTIONED)
def test_state_that_no_file_of_the_module_mentions_is_refused(body: str, head: str, name: str) -> None:
    base = "from acme.out import IDerivation\nclass Base(IDerivation): pass\nsetattr(Base, 'start_' + 'commit', len)\n"
    spec = lambdas(body, head=head, files=(ProjectFile("lib.py", base.encode()),))
    with pytest.raises(LambdaError, match=f"the module uses {name}, and none of its files mentions the word 'state'"):
        run(spec, [{"id": 1}])


def test_property_with_the_name_of_a_field_is_another_property() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "first-name": {"type": "string"}}}
    documents: list[Document] = [{"id": 1, "first_name": 2}, {"id": 1, "first_name": 2, "first-name": "a"}]
    published = run(lambdas("return read.doc", schema=schema), documents)
    assert [document for _, document in published] == documents


def test_files_with_the_names_of_other_modules_are_the_authors() -> None:
    files = (
        ProjectFile("acme/__init__.py", b"from acme.other import NUMBER\n"),
        ProjectFile("acme/other.py", b"NUMBER = 3\n"),
    )
    spec = lambdas(
        "return {'id': acme.NUMBER + len(statistics.__all__)}", head="import acme, statistics\n", files=files
    )
    config = replace(config_of(spec), path="random.py")
    import statistics

    assert run(replace(spec, connector_config=config), [{"id": 1}]) == [(0, {"id": 3 + len(statistics.__all__)})]


def test_module_that_hides_the_package_of_its_types_is_loaded() -> None:
    spec = lambdas("return read.doc")
    assert run(replace(spec, connector_config=replace(config_of(spec), path="acme.py")), [{"id": 1}]) == [
        (0, {"id": 1})
    ]


def test_l1_time_of_the_event_loop_follows_the_document() -> None:
    body = """
        import asyncio
        async def wait() -> Any:
            try:
                await asyncio.wait_for(asyncio.sleep(0.1), 50)
            finally:
                return {"id": asyncio.get_running_loop().time()}
        return wait()
    """
    published = run(lambdas(body), [{"id": 1}, {"id": 2}, {"id": 3}])
    assert len({document["id"] for _, document in published}) == 1


def test_task_that_outlives_its_method_has_no_state(tmp_path: Path) -> None:
    body = """
        import asyncio
        async def work() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.state["n"] = 1
        async def begin() -> None:
            if read.doc.id == 1:
                self.task = asyncio.create_task(work())
            else:
                await self.task
        return begin()
    """
    (tmp_path / "shard" / "attempt").mkdir(parents=True)
    session = open_session(lambdas(body), path=str(tmp_path / "shard" / "attempt" / "state.db"))
    with pytest.raises(LambdaError, match="self.state was used by a task that outlives the method of its document"):
        invoke(session, [{"id": 1}, {"id": 2}])
    session.close()


def test_models_of_the_author_are_published_with_their_defaults() -> None:
    head = "import pydantic\nclass Own(pydantic.BaseModel):\n    id: int\n    rate: float = 2.5\n"
    spec = lambdas("return [Own(id=1), {'id': 2, 'own': Own(id=3)}]", head=head)
    expected = [(0, {"id": 1, "rate": 2.5}), (0, {"id": 2, "own": {"id": 3, "rate": 2.5}})]
    assert run(spec, [{"id": 1}]) == expected


PUBLICATIONS = {
    "async generator": "async def each() -> Any:\n    for n in range(3):\n        doc.n = n\n        yield doc\nreturn each()",
    "generator": "for n in range(3):\n    doc.n = n\n    yield doc",
    "dict": "some: Any = {'id': 1}\nfor n in range(3):\n    some['n'] = n\n    yield some",
}


@pytest.mark.parametrize("form", PUBLICATIONS)
def test_document_that_is_changed_after_its_publication_is_another_one(form: str) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}}
    spec = lambdas(f"doc = Document(id=1)\n{PUBLICATIONS[form]}", schema=schema)
    assert run(spec, [{"id": 1}]) == [(0, {"id": 1, "n": number}) for number in range(3)]


def test_document_that_is_kept_and_changed_is_published_in_columns() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}}
    members = "def __init__(self, open: Any) -> None:\n    self.doc = Document(id=1)\n"
    spec = lambdas("if read.doc.id == 2: self.doc.n = 5\nreturn self.doc", members, schema=schema)
    session = open_session(spec)
    parts = session.invoke_columns(ReadBatch([0, 0], [CLOCK] * 2, [CLOCK] * 2, [{"id": 1}, {"id": 2}]))
    assert parts is not None
    listed = [
        document
        for part in parts
        for document in (part.columns.documents() if isinstance(part, PublishedColumns) else part.documents)
    ]
    assert listed == [{"id": 1}, {"id": 1, "n": 5}]
    session.close()


@pytest.mark.parametrize("library", ["pydantic", "msgspec"])
def test_documents_that_are_read_together_have_the_values_of_documents_read_alone(library: str) -> None:
    """Models of a frame with one transform are made from its text; those of other frames one by one."""
    text = f"""{HEAD}import random
class Derivation(IDerivation):
    def one(self, read: Any) -> Any:
        return [{{"id": int(read.doc.id), "r": random.random(), "some": read.doc.some}}]
    def two(self, read: Any) -> Any:
        return []
"""
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "some": {"type": "array", "items": {"type": ["number", "string"]}}},
    }
    spec = derivation(text, "one", "two", schema=schema, models=library)
    documents: list[Document] = [
        {"id": 1.0, "some": [1, 1.5, "a"]},
        {"id": 2, "some": [2**70, -0.0]},
        {"id": 3, "some": []},
    ]
    session = open_session(spec)
    together = invoke(session, documents)
    assert invoke(session, [*documents, {"id": 4}], [0, 0, 0, 1]) == together
    assert len({document["r"] for _, document in together}) == 3
    assert [document["some"] for _, document in together] == [[1, 1.5, "a"], [2**70, -0.0], []]
    session.close()
