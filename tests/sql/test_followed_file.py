import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.algebra.types import Row, Type
from derive.errors import SqlError
from derive.functions.types.jsonb import most_values
from derive.sql.sources.followed_file import WHOLE, FileFormat, FilePosition, FollowedFile, header_of

MOST_VALUES = most_values(128 << 20)
COLUMNS = (("name", Type.TEXT), ("amount", Type.DOUBLE), ("is big", Type.BOOLEAN), ("rest", Type.JSONB))
NAMES = st.text(st.sampled_from('ab",\n\ré;'), max_size=4).map(lambda text: text.replace("\r", "")).filter(bool)


def poll_all(form: FileFormat, position: FilePosition) -> tuple[list[Row], FilePosition]:
    rows: list[Row] = []
    while True:
        more, position = FollowedFile(form).poll(position)
        if not more:
            return rows, position
        rows += more


@settings(max_examples=50, deadline=None)
@given(names=st.lists(NAMES, max_size=8), cuts=st.lists(st.integers(1, 30)), is_csv=st.booleans())
def test_growing_files_yield_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], cuts: list[int], is_csv: bool
) -> None:
    path = tmp_path_factory.mktemp("followed") / "names"
    form = FileFormat(path, is_csv, True, (("name", Type.TEXT), ("n", Type.BIGINT)))
    if is_csv:
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        text = "name,n\n" + "".join(f"{name},{number}\n" for number, name in enumerate(quoted))
    else:
        text = "".join(json.dumps({"name": name, "n": number}) + "\n" for number, name in enumerate(names))
    data = text.encode()
    position, rows = FilePosition(), []
    path.write_bytes(b"")
    for size in [*cuts, len(data)]:
        with path.open("ab") as file:
            file.write(data[:size])
        data = data[size:]
        more, position = poll_all(form, position)
        rows += more
    assert rows == [(name, number) for number, name in enumerate(names)]
    assert position.offset == path.stat().st_size


def test_json_values_are_converted_like_casts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"name": 5, "amount": "1.5", "is big": true, "rest": {"b": 1, "a": [1.0]}}\n\n{"name": null}\n')
    rows, position = poll_all(FileFormat(path, False, False, COLUMNS), FilePosition())
    assert rows == [("5", 1.5, 1, '{"a": [1], "b": 1}'), (None, None, None, None)]
    assert position.lines == 3
    assert poll_all(FileFormat(path, False, False, WHOLE), FilePosition())[0][1] == ('{"name": null}',)


def test_invalid_line_is_reported_and_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"amount": 1}\n{"amount": "x"}\n')
    with pytest.raises(SqlError, match="a.jsonl:2: invalid input syntax for type double precision") as caught:
        poll_all(FileFormat(path, False, False, COLUMNS), FilePosition())
    assert caught.value.sqlstate == "22P02"
    path.write_text("[1]\n")
    with pytest.raises(SqlError, match="not a JSON object"):
        poll_all(FileFormat(path, False, False, COLUMNS), FilePosition())
    csv = tmp_path / "a.csv"
    csv.write_text("name\nx\n1,2\n")
    with pytest.raises(SqlError, match="extra data") as caught:
        poll_all(FileFormat(csv, True, True, COLUMNS[:1]), FilePosition())
    assert caught.value.detail == f"COPY {csv}, line 3"


def test_replaced_file_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    form = FileFormat(path, False, False, WHOLE)
    path.write_text('{"a": 1}\n{"a": 2}\n')
    _, position = poll_all(form, FilePosition())
    path.write_text('{"a": 1}\n')
    with pytest.raises(SqlError, match="has 9 bytes, and was read up to byte 18"):
        poll_all(form, position)
    path.write_text('{"a": 3}\n{"a": 2}\n{"a": 4}\n')
    with pytest.raises(SqlError, match="was replaced by another file"):
        poll_all(form, position)
    path.unlink()
    with pytest.raises(SqlError, match="No such file"):
        poll_all(form, position)


def test_a_line_longer_than_a_piece_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derive.sql.sources.followed_file.PIECE_BYTES", 4)
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n[2]\n"unfinished')
    assert poll_all(FileFormat(path, False, False, WHOLE), FilePosition())[0] == [('{"a": 1}',), ("[2]",)]


def test_header_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('name,"a, b"\r\n')
    assert header_of(path) == (("name", Type.TEXT), ("a, b", Type.TEXT))
    for text in ("", "name", "a,a\n", ",b\n"):
        path.write_text(text)
        with pytest.raises(SqlError, match="first line"):
            header_of(path)


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(st.integers(0, 99_999), min_size=1, max_size=2_000), data=st.data())
def test_file_is_refused_while_bytes_that_were_read_differ(
    tmp_path_factory: pytest.TempPathFactory, lines: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("followed") / "numbers"
    form = FileFormat(path, False, False, WHOLE)
    path.write_text("".join(f"{line}\n" for line in lines))
    _, position = poll_all(form, FilePosition())
    size = path.stat().st_size
    place = data.draw(
        st.integers(0, min(size, 4096) - 1).map(lambda at: data.draw(st.sampled_from([at, size - 1 - at])))
    )
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content) + b"7\n")
    with pytest.raises(SqlError) as caught:
        poll_all(form, position)
    assert caught.value.sqlstate == "55000"
    content[place] ^= 1
    path.write_bytes(bytes(content) + b"7\n")  # it was put back
    assert poll_all(form, position)[0] == [("7",)]


def test_positions_of_earlier_versions_are_those_of_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("1\n" * 5_000)
    form = FileFormat(path, False, False, WHOLE)
    earlier = FilePosition(8_000, 4_000, zlib.crc32(b"1\n" * 2_048))
    rows, position = poll_all(form, earlier)
    assert (len(rows), position.offset, position.lines) == (1_000, 10_000, 5_000)


def test_irregular_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("pipe", "not a regular file"), (".", "not a regular file"), ("none", "No such file")):
        with pytest.raises(SqlError, match=reason) as caught:
            poll_all(FileFormat(tmp_path / name, False, False, WHOLE), FilePosition())
        assert caught.value.sqlstate == "58P01"


def test_a_first_line_that_does_not_end_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(300 << 20)  # which takes no space

    with pytest.raises(SqlError, match="the first line of .* has more than 134217728 bytes"):
        header_of(path)


def test_a_line_of_too_many_values_is_an_error(tmp_path: Path) -> None:
    """A parser would need 200 bytes for each; commas in a string are no values."""
    path, form = tmp_path / "a.jsonl", FileFormat(tmp_path / "a.jsonl", False, False, WHOLE)
    path.write_text(f'["{"," * MOST_VALUES}"]\n')
    assert len(FollowedFile(form).poll(FilePosition())[0]) == 1
    path.write_text(f"[{','.join('1' * MOST_VALUES)},1]\n")
    with pytest.raises(SqlError, match="more than 8,388,608 values") as caught:
        FollowedFile(form).poll(FilePosition())
    assert caught.value.sqlstate == "54000"
