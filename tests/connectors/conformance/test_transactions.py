"""What every connector must do with a stream of transactions, whatever its endpoint."""

from __future__ import annotations

import pytest
from raw_client import COMMIT, Document, Key, key_of, load, prepare, thing
from served import Client
from subject import Subject

LAYOUTS = ["rows", "lists", "backwards", "gaps"]
THINGS = [
    thing(1, amount=1.5, flag=True, nested={"a": [1, None]}, note="one"),
    thing(-2, amount=-7, flag=False, nested=[], note=None),
    thing(3, "b", amount=10**15, nested={}),
]


def by_key(documents: list[Document]) -> dict[Key, Document]:
    return {key_of(document): document for document in documents}


@pytest.mark.sampled(4)
def test_stored_documents_are_loaded_again(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()

    assert stream.transact(b"1", stream.store(THINGS)) == []

    assert subject.rows("things") == by_key(THINGS)
    stream.end()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", LAYOUTS)
def test_documents_are_stored_from_any_arena_layout(connector_client: Client, subject: Subject, how: str) -> None:
    documents = [thing(index, amount=index / 4, note=f"note {index}") for index in range(300)]
    stream = connector_client.ready()

    stream.transact(b"1", stream.store(documents[:1], how=how), stream.store(documents[1:], how=how))
    assert subject.rows("things") == by_key(documents)

    if subject.loads:
        keys = list(map(key_of, documents))
        loaded = stream.transact(b"2", loads=[load(0, keys[:200], how), load(0, keys[200:], how)])
        assert by_key([document for _, document in loaded]) == by_key(documents)
    stream.end()


@pytest.mark.sampled(4)
def test_rows_may_share_a_slice_of_the_arena(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()
    message = stream.store([thing(1, note="same"), thing(2, note="same")])
    message.store.packed_values[1].CopyFrom(message.store.packed_values[0])

    stream.transact(b"1", message)

    assert [*subject.rows("things")] == [(1, "a"), (2, "a")]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("loading")
def test_documents_are_loaded_updated_and_deleted(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()
    stream.transact(b"1", stream.store(THINGS))

    keys = [*map(key_of, THINGS), (4, "a"), (1, "b")]
    loaded = stream.transact(
        b"2",
        stream.store([thing(1, note="new"), thing(4)], [True, False]),
        stream.store([thing(3, "b", note="gone")], [True], delete=[subject.deletes]),
        loads=[load(0, keys[:2]), load(0, keys[2:])],
    )

    # what is not there is not answered
    assert by_key([document for _, document in loaded]) == by_key(THINGS)
    assert len(loaded) == 3
    left = by_key([thing(1, note="new"), THINGS[1], thing(4)])
    kept = {} if subject.deletes else by_key([thing(3, "b", note="gone")])
    assert subject.rows("things") == left | kept
    assert [document for _, document in stream.transact(b"3", loads=[load(0, [(3, "b")])])] == list(kept.values())
    stream.end()


@pytest.mark.usefixtures("loading")
def test_deletion_of_missing_keys_does_nothing(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()

    stream.transact(b"1", stream.store([thing(1), thing(2)], [False, False], delete=[True, False]))

    assert subject.rows("things") == (by_key([thing(2)]) if subject.deletes else by_key([thing(1), thing(2)]))


@pytest.mark.sampled(4)
def test_empty_transactions_commit(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()

    for checkpoint in (b"1", b"2", b"3"):
        assert stream.transact(checkpoint) == []
    stream.end()

    _, checkpoint = connector_client.open(connector_client.materialization())
    assert checkpoint == (b"3" if subject.transactional else b"")
    assert subject.rows("things") == {}


def test_materialization_without_bindings_commits(connector_client: Client) -> None:
    stream = connector_client.ready(())

    assert stream.transact(b"1") == []
    stream.end()


@pytest.mark.usefixtures("loading")
def test_loads_before_committed_are_answered(connector_client: Client) -> None:
    stream = connector_client.ready()
    stream.transact(b"1", stream.store(THINGS[:2]))

    # All of two transactions is sent before anything of the first is known to be committed.
    stream.send(prepare(b"2"))
    assert stream.documents() == []
    stream.send(stream.store(THINGS[2:]), COMMIT, load(0, [(1, "a")]), load(0, [(-2, "a"), (5, "a")]), prepare(b"3"))

    stream.expect("committed")
    assert sorted(document["id"] for _, document in stream.documents()) == [-2, 1]
    stream.send(COMMIT)
    stream.expect("committed")
    stream.end()


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("loading")
def test_many_transactions_commit_one_after_another(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()
    documents: dict[int, Document] = {}
    stream.send(prepare(b"0"))
    for number in range(1, 13):
        loaded = {document["id"]: document for _, document in stream.documents()}
        # a key is not loaded while it is being committed, so three of four take turns
        keys = [(number + step) % 4 for step in range(1, 3)]
        changed = [thing(key, amount=loaded.get(key, {"amount": 0})["amount"] + 1) for key in loaded or [0, 1, 2, 3]]
        stored = stream.store(changed, [document["id"] in documents for document in changed])
        documents |= {document["id"]: document for document in changed}
        following = [key for key in keys if key not in {document["id"] for document in changed}]
        loads = [load(0, [(key, "a") for key in following])] if following else []
        stream.send(stored, COMMIT, *loads, prepare(b"%d" % number))
        stream.expect("committed")
    stream.documents()
    stream.leave()

    assert subject.rows("things") == by_key(list(documents.values()))


@pytest.mark.sampled(4)
def test_bindings_do_not_mix_their_rows(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready(["left", "right"])

    stream.transact(b"1", stream.store([thing(1)]), stream.store([thing(1, note="r"), thing(2)], binding=1))
    assert subject.rows("left") == by_key([thing(1)])
    assert subject.rows("right") == by_key([thing(1, note="r"), thing(2)])

    if subject.loads:
        loaded = stream.transact(b"2", loads=[load(0, [(1, "a"), (2, "a")]), load(1, [(1, "a")])])
        assert sorted(loaded, key=str) == [(0, thing(1)), (1, thing(1, note="r"))]
    stream.end()


TEXTS = ["", "ä", "日本語", "😀", "a\u2028b", "'\"`;--", "\\", "\t\r\n", "%_", "\ufeff", "null", "\u007f\u0080"]


@pytest.mark.sampled(4)
def test_any_text_is_stored_in_keys_values_and_documents(connector_client: Client, subject: Subject) -> None:
    texts = [*TEXTS, *(["a\0b", "\0", "\0\xff"] if subject.holds_nul else [])]
    documents = [thing(1, text, note=text, nested={text: [text]}) for text in texts]
    stream = connector_client.ready()

    stream.transact(b"1", stream.store(documents))
    assert subject.rows("things") == by_key(documents)

    if subject.loads:
        loaded = stream.transact(b"2", loads=[load(0, list(map(key_of, documents)))])
        assert by_key([document for _, document in loaded]) == by_key(documents)
    stream.end()


NUMBERS = [0, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, -1, -(2**63)]


@pytest.mark.sampled(4)
def test_any_integer_is_stored_in_keys(connector_client: Client, subject: Subject) -> None:
    documents = [thing(number, amount=1) for number in NUMBERS]
    stream = connector_client.ready()

    stream.transact(b"1", stream.store(documents))

    assert subject.rows("things") == by_key(documents)
    if subject.loads:
        loaded = stream.transact(b"2", loads=[load(0, list(map(key_of, documents)))])
        assert by_key([document for _, document in loaded]) == by_key(documents)


@pytest.mark.sampled(1)
def test_document_of_16_megabytes_is_stored(connector_client: Client, subject: Subject) -> None:
    documents = [thing(1, note="x" * (16 << 20)), thing(2), thing(3, note="ü" * (2 << 20))]
    stream = connector_client.ready()

    stream.transact(b"1", stream.store(documents))
    assert subject.rows("things") == by_key(documents)

    if subject.loads:
        loaded = stream.transact(b"2", loads=[load(0, list(map(key_of, documents)))])
        assert by_key([document for _, document in loaded]) == by_key(documents)
    stream.end()
