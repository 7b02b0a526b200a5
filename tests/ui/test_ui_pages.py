"""The pages of `flowctl ui`, in this process: their facts, hostile documents, and refused requests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import write_catalog
from forked_flowctl import flowctl
from patience import PATIENCE_SECONDS

pytest.importorskip("starlette", reason="the extra `ui` is not installed")

from starlette.testclient import TestClient
from ui_shop import CATALOG, SCRIPT, orders

from derive.catalog import load_without_tests
from derive.errors import UsageError
from derive.storage.store import Store
from derive.ui.access import Permissions, Token, Users
from derive.ui.application import Services, application
from derive.ui.collections import growth
from derive.ui.folder import Folder
from derive.ui.server import Address
from derive.ui.subscriptions import Subscriptions
from derive.ui.test_runs import TestRuns
from derive.ui.watcher import Budget, Watcher

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a catalog with hostile documents, a failed task and a quarantine."""
    folder = tmp_path_factory.mktemp("ui")
    write_catalog(folder, CATALOG)
    assert flowctl(folder, "ingest", "--collection", "shop/orders", text=orders(2_000_000))[0] == 0
    assert flowctl(folder, "run", "--until-idle")[0] == 1
    return folder


def services_of(folder: Path, permissions: Permissions | None = None) -> Services:
    return Services.of(Folder(folder / "flow.yaml", None), permissions)


def pages(
    folder: Path, address: Address = LOOPBACK, services: Services | None = None, scheme: str = "http", **options: Any
) -> TestClient:
    services = services or services_of(folder)
    served: Any = application(services, address.hosts, address.secret(), scheme)
    return TestClient(served, base_url=f"{scheme}://{next(iter(sorted(address.hosts)))}:8080", **options)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with pages(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("url", "facts"),
    [
        (
            "/",
            [
                "<svg",
                "5 documents",
                "failed",
                'href="/tasks/shop/broken"',
                "1 quarantined",
                "No run works on this folder",
            ],
        ),
        ("/collections", ["shop/orders", "/customer", "ingested", "derived"]),
        ("/collections/shop/orders", ["ingestion", "shop/spending</bdi>", "JSON Schema"]),
        ("/collections/shop/spending", ["customer", "key", "Readers and writers", "reader: <bdi>shop/reports from"]),
        ("/tasks", ["shop/reports", "shop/broken", "idle"]),
        ("/tasks/shop/spending", ["INSERT INTO seen", "flow.yaml:", "Migration 1", "committed", "s a document"]),
        ("/tasks/shop/spending", ["<dt>Published</dt><dd>3</dd>", "<dt>Time per document</dt>"]),
        ("/tasks/shop/broken", ["shop/broken", "x&lt;y", "failed"]),
        ("/tasks/shop/reports", ["materialize-sqlite", "{&#34;table&#34;:&#34;spending&#34;}", "Rows out"]),
        ("/tasks/shop/reports", ["<dt>Last commit</dt>", "3 rows", "<dt>Rows a second</dt>", "<dt>Checkpoint</dt>"]),
        (
            "/tests",
            [
                "shop/tests/spending",
                "verify 1 document of shop/spending",
                'flowctl ui <span class="option">--allow-tests</span>',
            ],
        ),
        (
            "/quarantine",
            [
                "fromOrders",
                "no JSON",
                'flowctl quarantine retry <span class="option">--task</span> shop/spending <span',
            ],
        ),
        ("/state/shop/spending?table=seen", ["flow_shard", "<td", 'State of <a href="/tasks/shop/spending">']),
        ("/documents/shop/spending", ["ann", "20", "why"]),
        ("/documents/shop/orders?view=raw&key=1", ["&#34;amount&#34;:20", "versions"]),
        ("/documents/shop/orders?view=raw&where=amount%20%3D%205.5", ["&lt;script&gt;"]),
        ("/documents/shop/spending?view=history&key=ann", ["ann", "20"]),
        ("/documents/shop/spending?view=history", ["Give a key"]),
        ("/documents/shop/orders?where=nothing+%3D+1", ["42703", "nothing"]),
        ("/documents/shop/orders?as_of=yesterday", ["as of takes a time"]),
        (
            "/why/collections/shop/spending?key=%5B%22ann%22%5D",
            ["by fromOrders from shop/orders", "equal to the replay"],
        ),
        ("/why/collections/shop/spending?key=%5B%22unknown%22%5D", ["has the key"]),
    ],
)
def test_page_shows_its_facts(client: TestClient, url: str, facts: list[str]) -> None:
    response = client.get(url)

    assert response.status_code == 200
    assert [fact for fact in facts if fact not in response.text] == []


def test_page_escapes_documents(client: TestClient) -> None:
    urls = ["/", "/quarantine", "/tasks/shop/broken", "/tasks/shop/spending", "/state/shop/spending?table=seen"]
    urls += [f"/documents/shop/{name}?view={view}" for name in ("orders", "spending") for view in ("raw", "reduced")]
    urls.append("/why/collections/shop/spending?key=" + f'["ben {SCRIPT}"]')
    texts = {url: client.get(url).text for url in urls}

    assert [url for url, text in texts.items() if "<script>alert" in text or "<img" in text or "\u202e" in text] == []
    assert sum("&lt;script&gt;alert" in text for text in texts.values()) >= 4
    assert "\\u202eabc" in texts["/documents/shop/orders?view=raw"]


def test_page_cuts_a_large_document(client: TestClient) -> None:
    text = client.get("/documents/shop/orders?view=raw&key=11").text

    assert "more characters" in text
    assert "The document has 2,000," in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    ("statements", "facts"),
    [
        ('SELECT * FROM "shop/spending" ORDER BY spent DESC', ["<td", "20", "&lt;script&gt;", "3 rows", "customer"]),
        ("SELECT NULL AS a; SHOW TimeZone", ['class="null"', "UTC"]),
        ('EXPLAIN SELECT * FROM "shop/spending"', ["shop/spending", '<pre class="plan"', "<svg"]),
        ("SUBSCRIBE (SELECT nothing)", ["42703"]),
        ("SELECT generate_series(1, 300) AS n", ["The first 200 rows"]),
        ("SELECT 1;\n SELECT nothing", ["42703", "the editor:2:9", "^^^^^^^"]),
        ('INSERT INTO "shop/orders" VALUES (1)', ["25006", "the page only reads"]),
        ("CREATE TABLE t (a int)", ["25006", "flowctl sql serve"]),
        ("WITH d AS (DELETE FROM t RETURNING 1) SELECT 1", ["25006"]),
    ],
)
def test_sql_page_executes_only_reads(client: TestClient, statements: str, facts: list[str]) -> None:
    text = client.post("/sql", data={"sql": statements}).text

    assert [fact for fact in facts if fact not in text] == []
    assert "<script>alert" not in text


def test_subscription_shows_its_last_rows_once(client: TestClient) -> None:
    text = client.post("/sql", data={"sql": "SUBSCRIBE (SELECT generate_series(1, 300) AS n, '<b>' AS t)"}).text
    ticket = text.partition("/sql/rows?ticket=")[2].partition('"')[0]
    events = [client.get(f"/sql/rows?ticket={ticket}").text for _ in range(2)]

    assert "300 updates, the last 200 of them, newest first; the subscription has ended" in events[0]
    assert events[0].count('<td dir="auto">&lt;b&gt;</td>') % 200 == 0
    assert events[0].endswith("event: end\ndata: \n\n")
    assert "the subscription has ended; run the statement again" in events[1]


def test_subscription_ends_when_its_page_is_left(folder: Path) -> None:
    subscriptions = Subscriptions(Folder(folder / "flow.yaml", None))

    async def follow() -> tuple[list[int], str]:
        streams = [subscriptions.shown(subscriptions.ticket('SUBSCRIBE "shop/spending"')) for _ in range(5)]
        counts = []
        for stream in streams[:4]:
            async for shown in stream:
                if shown.count:
                    counts.append(shown.count)
                    break
        refused = await anext(streams[4])
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        return counts, refused.error or ""

    counts, error = asyncio.run(asyncio.wait_for(follow(), PATIENCE_SECONDS))
    threads = [thread for thread in threading.enumerate() if thread.name == "subscription"]
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    assert counts == [3, 3, 3, 3]
    assert "4 pages show subscriptions" in error
    assert not any(thread.is_alive() for thread in threads)


def test_editor_completes_names(client: TestClient) -> None:
    names = client.get("/sql/names").json()

    assert ['"shop/spending"', "collection"] in names
    assert ["spent", "column of shop/spending"] in names
    assert ["SELECT", "word"] in names


def token_of(client: TestClient, url: str) -> str:
    return client.get(url).text.partition('name="token" value="')[2].partition('"')[0]


OWN = {"origin": "http://127.0.0.1:8080"}
"""The header that browsers send with forms of the page."""


def test_form_needs_permissions_origin_and_token(folder: Path, client: TestClient) -> None:
    permissions = Permissions(runs_tests=True, writes=True)
    with pages(folder, services=services_of(folder, permissions)) as permitted:
        for url, form in (("/tests", {"name": "shop/tests/spending"}), ("/sql", {"sql": "SELECT 77"})):
            token = token_of(permitted, url)
            assert token == permissions.token
            assert permitted.post(url, data=form, headers=OWN).status_code == 403
            assert permitted.post(url, data={**form, "token": "x" * len(token)}, headers=OWN).status_code == 403
            assert permitted.post(url, data={**form, "token": token}).status_code == 403
            foreign = {"origin": "http://evil.example"}
            assert permitted.post(url, data={**form, "token": token}, headers=foreign).status_code == 403
        assert "77" in permitted.post("/sql", data={"sql": "SELECT 77", "token": permissions.token}, headers=OWN).text
    assert token_of(client, "/tests") == ""
    refused = client.post("/tests", data={"token": permissions.token}, headers=OWN)
    assert (refused.status_code, "--allow-tests" in refused.text) == (403, True)


def test_page_runs_tests_and_shows_differences(folder: Path) -> None:
    services = services_of(folder, Permissions(runs_tests=True))
    with pages(folder, services=services, follow_redirects=False) as client:
        token = token_of(client, "/tests")
        assert client.post("/tests", data={"token": token, "name": "unknown"}, headers=OWN).status_code == 404
        assert client.post("/tests", data={"token": token}, headers=OWN).status_code == 303
        services.test_runs.wait()
        text = client.get("/tests").text

    assert "1 of 1 test ended, 1 failed" in text
    for fact in ("Step 2: verify shop/spending", '<code dir="ltr">/spent</code>', ">21<", ">20<", "&lt;script&gt;"):
        assert fact in text
    assert "<script>alert" not in text


def test_end_of_the_server_lets_tests_remove_their_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, removed, program = tmp_path / "begun", tmp_path / "removed", tmp_path / "program"
    os.mkfifo(begun)
    lines = ["import signal", "try:", f"    open({str(begun)!r}, 'w').close()", "    signal.pause()"]
    lines += ["except KeyboardInterrupt:", f"    open({str(removed)!r}, 'w').close()"]
    program.write_text("\n".join([f"#!{sys.executable} -IS", *lines]))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    runs = TestRuns(Folder(folder / "flow.yaml", None))
    runs.begin(None)
    assert begun.read_text() == ""
    runs.close()
    assert removed.exists()
    runs.wait()
    last = runs.last
    runs.begin(None)
    assert runs.last is last


def test_permitted_statements_write(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    with pages(tmp_path, services=services_of(tmp_path, Permissions(writes=True))) as client:
        token = token_of(client, "/sql")
        statements = "CREATE TABLE notes (a int); INSERT INTO notes VALUES (7), (8); SELECT sum(a) FROM notes"
        text = client.post("/sql", data={"sql": statements, "token": token}, headers=OWN).text
        refused = client.post("/sql", data={"sql": "COPY notes TO STDOUT", "token": token}, headers=OWN).text
        client.post("/sql", data={"sql": "CREATE SEQUENCE numbers", "token": token}, headers=OWN)
    with pages(tmp_path) as client:
        trick = "SELECT set_config('default_transaction_read_only', 'off', false); SELECT nextval('numbers')"
        assert "25006" in client.post("/sql", data={"sql": trick}).text

    assert "INSERT 0 2" in text
    assert ">15</td>" in text
    assert "need a client" in refused


def test_tables_of_sql_lead_to_a_query(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    statements = "CREATE TABLE notes (a int); INSERT INTO notes VALUES (77); CREATE VIEW odd AS SELECT a FROM notes"
    assert flowctl(tmp_path, "sql", "-c", statements)[0] == 0
    with pages(tmp_path) as client:
        link = "/sql?sql=SELECT%20%2A%20FROM%20%22public%22.%22notes%22%20LIMIT%2050"
        assert all(f'href="{link}"' in client.get(url).text for url in ("/collections", "/sql"))
        rows = client.get("/collections").text
        assert '<td data-name="Kind">table</td>\n<td data-name="Documents" class="number">1</td>' in rows
        assert '<bdi>odd</bdi></a> <span class="note">view</span>' in client.get("/sql").text
        editor = client.get(link).text
        result = client.post("/sql", data={"sql": 'SELECT * FROM "public"."notes" LIMIT 50'}).text

    assert "SELECT * FROM &#34;public&#34;.&#34;notes&#34; LIMIT 50</textarea>" in editor
    assert "77" not in editor
    assert ">77</td>" in result


def test_documents_are_paged(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    text = "".join(json.dumps({"id": number}) + "\n" for number in range(120))
    assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text=text)[0] == 0
    with pages(tmp_path) as client:
        shown = [client.get(f"/documents/shop/orders?view=raw&offset={offset}").text for offset in (0, 50, 100)]

    assert [text.count('class="document"') for text in shown] == [50, 50, 20]
    assert ['rel="next"' in text for text in shown] == [True, True, False]
    assert ['rel="prev"' in text for text in shown] == [False, True, True]


def test_collection_without_documents_has_no_final_time(tmp_path: Path) -> None:
    catalog = load_without_tests(write_catalog(tmp_path, CATALOG))
    store = Store(tmp_path / ".flow")
    store.create(catalog.collections["shop/orders"])
    store.close()
    with pages(tmp_path) as client:
        assert "<dt>Final before</dt><dd>nothing is stored</dd>" in client.get("/collections/shop/orders").text
        assert "1970" not in client.get("/collections").text


def test_pages_follow_edits_and_commits(tmp_path: Path) -> None:
    catalog = write_catalog(tmp_path, CATALOG)
    with pages(tmp_path) as client:
        assert "0 documents" in client.get("/").text  # there is no data folder yet
        assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text='{"id": 1}')[0] == 0
        assert "1 document" in client.get("/").text
        catalog.write_text(catalog.read_text().replace("shop/broken", "shop/renamed"))
        assert "shop/renamed" in client.get("/").text
        catalog.write_text("collections: 1")
        response = client.get("/")

    assert response.status_code == 500
    assert "flow.yaml:1:14" in response.text


def test_pages_follow_a_replaced_data_folder(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    with pages(tmp_path) as client:
        for count in (2, 3):
            text = "".join(json.dumps({"id": number}) + "\n" for number in range(count))
            assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text=text)[0] == 0
            assert f"{count} documents" in client.get("/").text
            shutil.rmtree(tmp_path / ".flow")
            assert "0 documents" in client.get("/").text


@pytest.mark.parametrize("url", ["/collections/shop/missing", "/tasks/shop/orders", "/nothing", "/static/../folder.py"])
def test_unknown_page_is_missing(client: TestClient, url: str) -> None:
    assert client.get(url).status_code == 404


def test_responses_have_a_strict_policy(client: TestClient) -> None:
    for url in ("/", "/static/app.css", "/static/htmx.min.js", "/picture.css", "/nothing"):
        headers = client.get(url).headers
        assert "script-src 'self'; style-src 'self'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    text = client.get("/").text
    assert not any(word in text for word in (" style=", "<style", "<script>", " onclick=", "javascript:", "://cdn"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8080"}, 421),
        ({"host": "LOCALHOST:8080"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_request_of_another_site_is_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.get("/collections", headers=headers).status_code == status


def test_page_needs_the_secret(folder: Path, tmp_path: Path) -> None:
    for name, text in (("token", "a-very-secret-token\n"), ("passwords", "ann:right\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)

    def status(address: Address, authorization: str) -> int:
        with pages(folder, address, scheme="https") as client:
            return int(client.get("/collections", headers={"authorization": authorization}).status_code)

    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    by_token = Address("0.0.0.0", 0, ["pages.example"], token_file=tmp_path / "token", certificate="c.pem")
    by_password = Address("10.0.0.1", 0, password_file=tmp_path / "passwords", certificate="c.pem")
    assert status(by_token, "") == status(by_token, "Bearer wrong") == status(by_token, "Basic !") == 401
    assert status(by_token, "Bearer a-very-secret-token") == status(by_token, basic("me:a-very-secret-token")) == 200
    assert status(by_password, basic("ann:wrong")) == status(by_password, basic("eve:right")) == 401
    assert status(by_password, basic("ann:right")) == 200


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (Address("0.0.0.0", 0), "the pages need a secret"),
        (Address("10.0.0.1", 0, token_file=Path("t")), "the pages need TLS"),
        (Address("::", 0, token_file=Path("t"), certificate="c"), "needs the name that browsers use"),
        (Address("127.0.0.1", 0, token_file=Path("t"), password_file=Path("p")), "exclude each other"),
        (Address("127.0.0.1", 0, key="k"), "--tls-key needs a certificate"),
    ],
)
def test_address_without_security_is_refused(address: Address, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        address.check()


def test_token_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("short")
    file.chmod(0o644)
    for message, mode in (("other users may read", 0o600), ("fewer than 16 characters", 0o600)):
        with pytest.raises(UsageError, match=message):
            Token(file)
        file.chmod(mode)
    with pytest.raises(UsageError, match="cannot be read"):
        Token(tmp_path / "missing")


def test_users_are_those_of_the_sql_server(tmp_path: Path) -> None:
    from derive.sql.pgwire.passwords import Passwords, Verifier

    users = Users(Passwords({"ann": Verifier.of_password("right", b"salt" * 4, 10)}))
    given = [("ann", "right"), ("ann", "right"), ("ann", "wrong"), ("eve", "right")]

    assert [users.accepts(*pair) for pair in given] == [True, True, False, False]


def test_watcher_notifies_all_pages_of_a_commit(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    Store(tmp_path / ".flow").close()
    data = Folder(tmp_path / "flow.yaml", None)
    watcher = Watcher(data)

    async def watch() -> list[str]:
        version = data.version()
        streams = [watcher.events(version) for _ in range(2)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        late = [stream async for stream in _first(watcher.events("another version"))]
        status = await asyncio.to_thread(flowctl, tmp_path, "ingest", "--collection", "shop/orders", text='{"id": 1}')
        assert status[0] == 0
        versions = [await one for one in waiting]
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        return [*late, *versions, version]

    late, first, second, before = asyncio.run(asyncio.wait_for(watch(), PATIENCE_SECONDS))

    assert late == before != first == second


def test_budget_saves_time_for_commits_after_a_quiet_time() -> None:
    budget = Budget(100.0)

    assert [budget.pause(now, 0.5) for now in (100.0, 100.5, 101.0)] == [0.0, 0.0, 4.0]
    assert [budget.pause(now, 0.5) for now in (105.0, 110.0, 115.0)] == [5.0, 5.0, 5.0]  # a tenth of the time
    assert [budget.pause(now, 0.5) for now in (200.0, 200.5, 201.0)] == [0.0, 0.0, 4.0]


def test_passing_time_changes_no_facts(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    Store(tmp_path / ".flow").close()
    data, store = Folder(tmp_path / "flow.yaml", None), Store(tmp_path / ".flow")
    version, facts = data.version(), data.facts()

    overview = data.overview()
    store.timeline.read()
    assert (data.version() != version, data.facts() == facts) == (True, True)
    assert data.overview(fresh=False) is overview
    assert data.overview() is not overview
    assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text='{"id": 1}')[0] == 0
    assert data.facts() != facts
    assert data.overview(fresh=False).documents["shop/orders"] == 1
    store.close()


async def _first(stream: Any) -> Any:
    yield await anext(stream)
    await stream.aclose()


def test_growth_spreads_documents_of_a_file_over_its_time() -> None:
    from derive.time.positions import Segment

    segments = [Segment("c", "p", (), 0, 0, 30, 1), Segment("c", "p", (), 0, 59_999_999, 60, 1)]
    shown = growth(segments)

    assert growth([]) is growth(segments[:1]) is None
    assert shown is not None
    assert (shown.most, len(shown.bars), shown.bars[0], shown.bars[1], shown.bars[59]) == (31, 60, 100, 3.2, 3.2)
