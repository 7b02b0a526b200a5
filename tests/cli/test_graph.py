"""Pictures of a data flow: what they say, that nothing in them overlaps, and that names cannot break out of them."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from forked_flowctl import flowctl
from hypothesis import given
from hypothesis import strategies as st

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.graph import render
from derive.cli.graph_picture import text_of

FORMS = ["text", "mermaid", "dot", "svg", "html", "json"]
SVG = "{http://www.w3.org/2000/svg}"

SMALL = FlowGraph(
    (Node("a/raw", "collection", ("key /id",)), Node("a/out", "derivation", ("sqlite", "key /id"))),
    (
        Flow("a/raw", "a/out", "fresh", ("shuffle any",)),
        Flow("a/out", "a/out", "again", ("shuffle /id", "delay 24h"), feedback=True),
    ),
)

CATALOG = """\
collections:
  a/raw: {schema: &schema {type: object, properties: {id: {type: integer}}, required: [id]}, key: [/id]}
  a/out:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fresh, source: a/raw, shuffle: any, lambda: SELECT $id}
        - {name: again, source: a/out, shuffle: {key: [/id]}, readDelay: 24h, lambda: SELECT $id WHERE 0}
"""


def graph(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return flowctl(folder, "graph", *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    return tmp_path


# What the formats say.


def test_graph_is_drawn_as_text() -> None:
    assert render(SMALL, "text", title="") == dedent(
        """\
        a/raw  (collection) key /id

        a/out  (derivation) sqlite; key /id
          <- a/raw
             fresh: shuffle any
          <- a/out (feedback: one tick later)
             again: shuffle /id; delay 24h
        """
    )


def test_text_names_the_destination_of_each_binding() -> None:
    flows = (Flow("a/raw", "a/view", "raw", ()), Flow("a/raw", "a/view", "late", ("delay 1h",)))
    graph = FlowGraph((Node("a/view", "materialization", ("materialize-sqlite",)),), flows)

    assert render(graph, "text", title="") == dedent(
        """\
        a/view  (materialization) materialize-sqlite
          <- a/raw
             into raw
          <- a/raw
             into late: delay 1h
        """
    )


def test_graph_is_drawn_as_mermaid() -> None:
    assert render(SMALL, "mermaid", title="") == dedent(
        """\
        flowchart LR
          n0["a/raw<br>key /id"]
          n1[["a/out<br>sqlite<br>key /id"]]
          n0 -->|"fresh<br>shuffle any"| n1
          n1 -.->|"again<br>shuffle /id<br>delay 24h<br>feedback"| n1
        """
    )


def test_graph_is_drawn_as_dot() -> None:
    assert render(SMALL, "dot", title="") == dedent(
        """\
        digraph catalog {
          rankdir=LR;
          node [fontname="monospace"];
          edge [fontname="monospace"];
          n0 [shape=box, label="a/raw\\nkey /id"];
          n1 [shape=component, label="a/out\\nsqlite\\nkey /id"];
          n0 -> n1 [label="fresh\\nshuffle any"];
          n1 -> n1 [label="again\\nshuffle /id\\ndelay 24h\\nfeedback", style=dashed, constraint=false];
        }
        """
    )


def test_graph_is_printed_as_json() -> None:
    graph = json.loads(render(SMALL, "json", title=""))

    assert graph["nodes"][0] == {"name": "a/raw", "kind": "collection", "notes": ["key /id"]}
    assert graph["flows"][1] == {
        "source": "a/out",
        "target": "a/out",
        "label": "again",
        "notes": ["shuffle /id", "delay 24h"],
        "feedback": True,
    }


def test_svg_shows_all_notes_and_marks_feedback() -> None:
    root = ElementTree.fromstring(render(SMALL, "svg", title=""))

    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts == [
        "a/raw",
        "key /id",
        "a/out",
        "sqlite · key /id",
        "fresh",
        "shuffle any",
        "again",
        "shuffle /id · delay 24h",
        "dashed: feedback, read one tick later",
    ]
    wires = [
        (each.get("class"), each.findtext(f"{SVG}title"))
        for each in root.iter(f"{SVG}g")
        if "wire" in each.get("class", "")
    ]
    assert wires == [
        ("wire", "fresh: a/raw → a/out; shuffle any"),
        ("wire feedback", "again: a/out → a/out (feedback); shuffle /id, delay 24h"),
        ("wire feedback", None),
    ]


def test_html_has_the_picture_and_a_table() -> None:
    page = render(SMALL, "html", title="flow.yaml")

    assert "<h1>Data flow of flow.yaml</h1>" in page
    assert "<td>a/out</td><td>again</td><td>a/out</td><td>shuffle /id; delay 24h; feedback</td>" in page
    assert page.count("<svg ") == 1


@pytest.mark.parametrize("form", ["svg", "html"])
def test_pictures_follow_the_colour_scheme_and_load_nothing(form: str) -> None:
    page = render(SMALL, form, title="x")

    assert "@media (prefers-color-scheme: dark)" in page
    assert re.findall(r"<script|<link|<image|<img|@import|url\(|href=|src=", page) == []
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_only_the_lines_of_wires_are_coloured() -> None:
    # What catches the pointer is as wide as a finger, and must stay invisible in either colour scheme.
    style = re.search("<style>(.*?)</style>", render(SMALL, "svg", title=""), re.DOTALL)
    assert style is not None
    strokes = re.findall(r"^(\.flow \.wire.*) \{.*stroke: (\S+);", style[1], re.MULTILINE)

    assert [(selector, colour) for selector, colour in strokes if not selector.endswith(" .line")] == [
        (".flow .wire .hit", "transparent")
    ]
    assert len(strokes) == 5


@pytest.mark.parametrize("form", FORMS)
def test_empty_graph_can_be_drawn(form: str) -> None:
    drawn = render(FlowGraph((), ()), form, title="x")

    assert drawn == {"text": "", "mermaid": "flowchart LR\n"}.get(form, drawn)
    if form == "svg":
        assert ElementTree.fromstring(drawn).tag == f"{SVG}svg"


# Hostile names.

HOSTILE = "\"'`]]>--><script>alert(1)</script>&amp;#quot;|\\n\\\\;}\n\t\x00\x1b[31m\u202e\ud800 %%{init}%% ${x}"
WRECK = FlowGraph(
    (Node(HOSTILE, "collection", (HOSTILE,)), Node("b", "derivation", (HOSTILE,))),
    (Flow(HOSTILE, "b", HOSTILE, (HOSTILE,)), Flow("b", "b", HOSTILE, (HOSTILE,), feedback=True)),
)


class Tags(HTMLParser):
    """The tags of a page, and all its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("form", FORMS)
def test_pictures_have_no_control_characters(form: str) -> None:
    drawn = render(WRECK, form, title=HOSTILE)

    assert [each for each in drawn if not each.isprintable() and each != "\n"] == []


def test_hostile_names_stay_text_in_svg_and_html() -> None:
    root = ElementTree.fromstring(render(WRECK, "svg", title=HOSTILE))
    page = Tags(render(WRECK, "html", title=HOSTILE))

    titles = [each.text or "" for each in root.iter(f"{SVG}title")]
    assert all("<script>alert(1)</script>&amp;#quot;" in title for title in titles)
    assert {each.tag.removeprefix(SVG) for each in root.iter()}.isdisjoint({"script", "foreignObject", "a", "image"})
    assert "script" not in page.tags
    assert "<script>alert(1)</script>&amp;#quot;" in page.text


def test_hostile_names_stay_inside_quotes_in_dot() -> None:
    drawn = render(WRECK, "dot", title="")

    strings = re.findall(r'"(?:[^"\\]|\\.)*"', drawn)
    assert re.sub(r'"(?:[^"\\]|\\.)*"', "Q", drawn).splitlines() == [
        "digraph catalog {",
        "  rankdir=LR;",
        "  node [fontname=Q];",
        "  edge [fontname=Q];",
        "  n0 [shape=box, label=Q];",
        "  n1 [shape=component, label=Q];",
        "  n0 -> n1 [label=Q];",
        "  n1 -> n1 [label=Q, style=dashed, constraint=false];",
        "}",
    ]
    assert "&amp;amp;#quot;" in strings[2]


def test_hostile_names_are_numbers_in_mermaid() -> None:
    labels = re.findall(r'"([^"]*)"', render(WRECK, "mermaid", title=""))

    assert len(labels) == 4
    assert re.findall(r"[^\w /._,:()=#;<>-]", "".join(labels)) == []
    assert set(re.findall(r"<[^>]*>", "".join(labels))) == {"<br>"}
    assert labels[0].startswith(
        "#34;#39;#96;#93;#93;#62;--#62;#60;script#62;alert(1)#60;/script#62;#38;amp#59;#35;quot#59;"
    )


def test_text_shows_control_characters_as_escapes() -> None:
    graph = FlowGraph((Node("a\n\x1b[31mb\u202e\ud800", "collection", ("key /é",)),), ())

    assert render(graph, "text", title="") == "a\\n\\x1b[31mb\\u202e\\ud800  (collection) key /é\n"


def test_json_of_hostile_names_reads_back() -> None:
    assert json.loads(render(WRECK, "json", title=""))["nodes"][0]["name"] == HOSTILE


@given(st.text())
def test_escaped_text_reads_back(text: str) -> None:
    shown = ElementTree.fromstring(f"<t a='{text_of(text)}'>{text_of(text)}</t>")

    assert shown.text == shown.get("a") or (shown.text is None and text == "")
    if text.isprintable():
        assert (shown.text or "") == text


# The command.


def test_the_command_prints_text(folder: Path) -> None:
    assert graph(folder) == (0, render(SMALL, "text", title=""), "")


@pytest.mark.parametrize(
    ("name", "form"), [("g.svg", "svg"), ("g.HTML", "html"), ("g.mmd", "mermaid"), ("g.gv", "dot"), ("g", "text")]
)
def test_the_suffix_chooses_the_format(folder: Path, name: str, form: str) -> None:
    assert graph(folder, "--output", name) == (0, "", f"wrote {name}\n")
    assert (folder / name).read_text(encoding="utf-8") == render(SMALL, form, title="flow.yaml")


def test_format_option_precedes_the_suffix(folder: Path) -> None:
    assert graph(folder, "--output", "g.svg", "--format", "dot")[0] == 0
    assert (folder / "g.svg").read_text().startswith("digraph")


def test_unknown_picture_suffix_is_refused(folder: Path) -> None:
    status, out, err = graph(folder, "--output", "g.png")

    assert (status, out) == (2, "")
    assert "g.png: unknown picture suffix '.png'" in err
    assert "name a file that ends with .txt, .mmd, .dot, .gv, .svg, .html, .json, or give --format (text, " in err
    assert not (folder / "g.png").exists()
    assert graph(folder, "--output", "g.png", "--format", "dot")[0] == 0


def test_unwritable_picture_file_is_an_error(folder: Path) -> None:
    status, out, err = graph(folder, "--output", "no/such/g.svg")

    assert (status, out) == (1, "")
    assert "cannot write no/such/g.svg: No such file or directory" in err


def test_a_catalog_with_errors_is_not_drawn(folder: Path) -> None:
    (folder / "flow.yaml").write_text(CATALOG.replace("source: a/raw", "source: a/rawr"))

    status, out, err = graph(folder, "--format", "svg")

    assert (status, out) == (1, "")
    assert "did you mean 'a/raw'?" in err
