"""Where things go in a picture of a data flow: nothing overlaps, everything is there, few flows cross."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.folding import cells
from derive.cli.graph import render
from derive.cli.graph_picture import (
    PAD,
    Box,
    Link,
    columns,
    components,
    crossings,
    lay_out,
    shortened,
    shortened_name,
    spread,
)

TEXTS = st.text(max_size=70)


@st.composite
def graphs(draw: st.DrawFn) -> FlowGraph:
    """Graphs of any shape: cycles, self-reads, many flows between the same nodes, parts that nothing connects."""
    count = draw(st.integers(1, 9))
    nodes = tuple(
        Node(
            f"n/{number}", draw(st.sampled_from(["collection", "derivation"])), tuple(draw(st.lists(TEXTS, max_size=2)))
        )
        for number in range(count)
    )
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    flows = [
        Flow(f"n/{source}", f"n/{target}", f"t{number}", tuple(draw(st.lists(TEXTS, max_size=3))), source >= target)
        for number, (source, target) in enumerate(draw(st.lists(ends, max_size=14)))
    ]
    return FlowGraph(nodes, tuple(sorted(flows, key=lambda flow: flow.target)))


@given(graphs())
def test_boxes_do_not_overlap_and_lie_in_the_picture(graph: FlowGraph) -> None:
    layout = lay_out(graph)

    assert sorted(box.node.name for box in layout.boxes) == [node.name for node in graph.nodes]
    for box in layout.boxes:
        assert 0 <= box.x <= box.x + box.width <= layout.width
        assert 0 <= box.y <= box.y + box.height <= layout.height
    for one, other in combinations(layout.boxes, 2):
        apart_x = one.x + one.width <= other.x or other.x + other.width <= one.x
        apart_y = one.y + one.height <= other.y + 1e-6 or other.y + other.height <= one.y + 1e-6
        assert apart_x or apart_y


@given(graphs())
def test_text_fits_its_box(graph: FlowGraph) -> None:
    for box in lay_out(graph).boxes:
        room = box.width - 2 * PAD + 1e-6
        assert cells(box.name) * 8 <= room
        for line in (*box.notes, *(note for row in box.rows for note in row.notes)):
            assert cells(line) * 7 <= room
        assert all(cells(row.label) * 8 <= room for row in box.rows)
        tops = [row.y for row in box.rows]
        assert all(
            below - above >= 15 + 15 * len(row.notes)
            for row, above, below in zip(box.rows, tops, tops[1:], strict=False)
        )


@given(graphs())
def test_wires_join_their_flows_and_pass_no_box(graph: FlowGraph) -> None:
    layout = lay_out(graph)
    boxes = {box.node.name: box for box in layout.boxes}

    assert sorted(wire.flow.label for wire in layout.wires) == sorted(flow.label for flow in graph.flows)
    for wire in layout.wires:
        source, target = boxes[wire.flow.source], boxes[wire.flow.target]
        port = next(row.port for row in target.rows if row.flow == wire.flow)
        assert wire.points[0][0] == source.x + source.width
        assert wire.points[-1] == (target.x, port)
        straight = list(zip(wire.points, wire.points[1:], strict=False))
        for (x, y), (to_x, to_y) in straight if wire.back else straight[1::2]:
            assert not [box for box in layout.boxes if _touches(box, (x, to_x), (y, to_y))]
            assert 0 <= min(x, to_x) <= max(x, to_x) <= layout.width
            assert 0 <= max(y, to_y) <= layout.height


def _touches(box: Box, x: tuple[float, float], y: tuple[float, float]) -> bool:
    """Whether a line along an axis passes the inside of a box."""
    across = max(x) > box.x + 1e-6 and min(x) < box.x + box.width - 1e-6
    return across and max(y) > box.y + 1e-6 and min(y) < box.y + box.height - 1e-6


@given(graphs())
def test_equal_graphs_have_equal_pictures(graph: FlowGraph) -> None:
    again = FlowGraph(tuple(graph.nodes), tuple(graph.flows))

    assert render(graph, "html", title="x") == render(again, "html", title="x")


def test_node_stands_right_of_its_sources() -> None:
    nodes = tuple(Node(each, "derivation") for each in "abdce")
    flows = (Flow("a", "b", "1"), Flow("b", "c", "2"), Flow("a", "c", "3"), Flow("c", "b", "4", feedback=True))
    graph = FlowGraph(nodes, (*flows, Flow("d", "c", "5"), Flow("c", "e", "6")))

    # d is read by c only, so it stands right before it.
    assert columns(graph) == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 3}


def test_unconnected_components_are_drawn_separately() -> None:
    nodes = tuple(Node(each, "collection") for each in ("lone", "a", "b", "c", "d", "single"))
    graph = FlowGraph(nodes, (Flow("c", "d", "1"), Flow("a", "b", "2")))

    assert [[node.name for node in part.nodes] for part in components(graph)] == [
        ["a", "b"],
        ["c", "d"],
        ["lone", "single"],
    ]


def test_crossings_are_counted() -> None:
    links = [Link("a", "y"), Link("b", "x"), Link("c", "x"), Link("a", "x")]

    assert crossings([["a", "b", "c"], ["x", "y"]], links) == 2
    assert crossings([["b", "c", "a"], ["x", "y"]], links) == 0


def test_layout_finds_an_order_without_crossings() -> None:
    nodes = tuple(Node(each, "derivation") for each in ("a", "b", "c", "x", "y", "z"))
    graph = FlowGraph(
        nodes, (Flow("c", "x", "1"), Flow("b", "y", "2"), Flow("a", "z", "3"), Flow("a", "y", "4"), Flow("b", "x", "5"))
    )

    tops = {box.node.name: box.y for box in lay_out(graph).boxes}

    left, right = sorted("abc", key=tops.__getitem__), sorted("xyz", key=tops.__getitem__)
    assert (left, right) in [(["a", "b", "c"], ["z", "y", "x"]), (["c", "b", "a"], ["x", "y", "z"])]


@pytest.mark.parametrize(
    ("wanted", "heights", "tops"),
    [
        ([0.0, 100.0], [10.0, 10.0], [0.0, 100.0]),
        ([5.0, 5.0], [10.0, 10.0], [0.0, 10.0]),
        ([100.0, 0.0], [10.0, 10.0], [45.0, 55.0]),
        ([], [], []),
    ],
)
def test_spread_minimizes_distances_without_overlaps(
    wanted: list[float], heights: list[float], tops: list[float]
) -> None:
    assert spread(wanted, heights) == tops


@pytest.mark.parametrize(
    ("text", "shown"),
    [("abcdef", "abcdef"), ("abcdefg", "abcde…"), ("日本語", "日本語"), ("日本語x", "日本…"), ("a\nb", "a\\nb")],
)
def test_shortened_text_fits_its_columns(text: str, shown: str) -> None:
    assert shortened(text, 6) == shown


def test_a_large_graph_is_drawn() -> None:
    nodes = tuple(Node(f"n/{number}", "derivation") for number in range(300))
    flows = tuple(Flow(f"n/{(number * 7) % number}", f"n/{number}", f"t{number}") for number in range(1, 300))

    assert len(lay_out(FlowGraph(nodes, flows)).wires) == 299


@given(graphs())
def test_text_lines_exceed_80_columns_only_for_a_long_word(graph: FlowGraph) -> None:
    for line in render(graph, "text", title="").splitlines():
        assert cells(line) <= 80 or len(line.split()) == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [("shop/or", "shop/or"), ("shop/orders1", "sho…rs1"), ("漢字漢字漢字", "漢…漢字"), ("a\nbcdefghi", "a\\n…ghi")],
)
def test_long_names_keep_their_beginning_and_end(name: str, shown: str) -> None:
    assert shortened_name(name, 7) == shown
