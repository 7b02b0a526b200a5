"""Lines of a narrow terminal: names, numbers and documents in them stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.cli.folding import cells, folded, folded_command, folded_hint

NAME = "acme/warehouse-of-the-north/returned-orders-by-customer"  # 55 columns
WORDS = st.text(st.sampled_from("ab/-é日"), min_size=1, max_size=40)


@given(st.lists(WORDS, min_size=1, max_size=8), st.integers(8, 60), st.integers(0, 12), st.integers(0, 12))
def test_words_stay_whole_and_fit(words: list[str], width: int, first: int, rest: int) -> None:
    """Law: lines have all words in order, and a line is longer than the width only if it is one word."""
    lines = folded(" ".join(words), width, " " * first, " " * rest)

    assert " ".join(lines).split() == words
    assert [line for line in lines if cells(line) > width and len(line.split()) > 1] == []
    assert all(cells(line) <= max(width, cells(line.strip())) for line in lines)


@pytest.mark.parametrize(
    ("text", "first", "rest", "lines"),
    [
        (f"{NAME}  (derivation) key /id", "", "    ", [NAME, "    (derivation) key /id"]),
        (NAME, "  <- ", "       ", ["  <- " + NAME]),
        (f"{NAME}-x", "     - ", "       ", ["     -", f"   {NAME}-x"]),  # further to the left than its indentation
        (f"{NAME}-and-more", "  = ", "    ", ["  =", f"{NAME}-and-more"]),
        (f"from {NAME}", "    ", "      ", ["    from", f"     {NAME}"]),
        (
            f'a {{"name":"{NAME}","counts":[1234567,"x"],"text":"a, b"}}',
            "  ",
            "    ",
            ["  a", f'{{"name":"{NAME}",', '    "counts":[1234567,"x"],"text":"a, b"}'],
        ),
        ('a {"n":1,"m":2}', "", "  ", ['a {"n":1,"m":2}']),
        ("日本 " * 8 + NAME, "", "  ", ["日本 " * 7 + "日本", f"  {NAME}"]),
        ("", "  ", "  ", []),
    ],
)
def test_long_words_begin_further_to_the_left(text: str, first: str, rest: str, lines: list[str]) -> None:
    assert folded(text, 60, first, rest) == lines


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("flowctl reset --task a/b", ["  flowctl reset --task a/b"]),
        (f"flowctl reset --task {NAME} --cascade", ["  flowctl reset --task \\", f"    {NAME} \\", "    --cascade"]),
        (
            f"flowctl why --view {NAME} --row '{{\"a b\": 1}}'",
            ["  flowctl why --view \\", f"    {NAME} \\", "    --row '{\"a b\": 1}'"],
        ),
    ],
)
def test_commands_of_several_lines_can_be_copied(command: str, lines: list[str]) -> None:
    """A backslash continues the command, and an argument in quotes stays whole."""
    assert folded_command(command, 61, "  ") == lines


def test_hints_end_with_a_command_that_can_be_copied() -> None:
    hint = f"add the new results to the old ones: flowctl run --accept {NAME}"

    assert folded_hint(hint, 200, "  = ", "    ") == [f"  = {hint}"]
    assert folded_hint(hint, 66, "  = ", "    ") == [
        "  = add the new results to the old ones:",
        "    flowctl run --accept \\",
        f"      {NAME}",
    ]
    assert folded_hint("look again, and look for the other one", 30, "  = ", "    ") == [
        "  = look again, and look for",
        "    the other one",
    ]
