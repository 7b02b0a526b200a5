"""A catalog's data flow as nodes and flows."""

from collections.abc import Callable

from derive.catalog.graph import Flow, Node, flow_graph
from derive.protocol.specs import CatalogSpec

SCHEMA = "{type: object, properties: {id: {type: integer}, region: {type: string}}, required: [id, region]}"


def test_graph_has_nodes_and_flows_of_a_catalog(catalog_of: Callable[..., CatalogSpec]) -> None:
    catalog = catalog_of(
        f"""
        collections:
          z/late:
            schema: &schema {SCHEMA}
            key: [/id]
            derive:
              using: {{sqlite: {{}}}}
              transforms:
                - name: everything
                  source: a/mid
                  shuffle: any
                  lambda: SELECT $id, $region
          a/mid:
            schema: *schema
            key: [/id, /region]
            projections: {{region: {{location: /region, partition: true}}}}
            derive:
              using: {{sqlite: {{}}}}
              shards: {{disable: true}}
              transforms:
                - name: most
                  source: {{name: m/raw, notBefore: 2024-01-01T00:00:00Z, notAfter: 2025-01-01T00:00:00Z}}
                  shuffle: {{key: [/region, /id]}}
                  readDelay: 90m
                  priority: 3
                  backfill: 2
                  lambda: SELECT $id, $region
                - name: own
                  source:
                    name: a/mid
                    partitions: {{include: {{region: [eu, "a b"]}}, exclude: {{region: [us]}}}}
                  shuffle: {{key: [/region, /id]}}
                  lambda: SELECT $id, $region WHERE 0
          m/raw: {{schema: *schema, key: [/id]}}
          b/unused: {{schema: *schema, key: [/id]}}
        """
    )

    graph = flow_graph(catalog)

    assert graph.nodes == (
        Node("b/unused", "collection", ("key /id",)),
        Node("m/raw", "collection", ("key /id",)),
        Node("a/mid", "derivation", ("sqlite", "key /id /region", "partitioned by region", "disabled")),
        Node("z/late", "derivation", ("sqlite", "key /id")),
    )
    most = ("delay 1h 30m", "priority 3", "not before 2024-01-01T00:00:00Z", "not after 2025-01-01T00:00:00Z")
    assert graph.flows == (
        Flow("m/raw", "a/mid", "most", ("shuffle /region /id", *most, "backfill 2")),
        Flow(
            "a/mid",
            "a/mid",
            "own",
            ("shuffle /region /id", 'only region eu or "a b"', "without region us"),
            feedback=True,
        ),
        Flow("a/mid", "z/late", "everything", ("shuffle any",)),
    )


def test_graph_labels_a_computed_shuffle_as_lambda(catalog_of: Callable[..., CatalogSpec]) -> None:
    catalog = catalog_of(
        f"""
        collections:
          a/raw: {{schema: &schema {SCHEMA}, key: [/id]}}
          a/out:
            schema: *schema
            key: [/id]
            derive:
              using: {{sqlite: {{}}}}
              shuffleKeyTypes: [integer]
              transforms:
                - name: computed
                  source: a/raw
                  shuffle: {{lambda: SELECT $id % 7}}
                  lambda: SELECT $id, $region
        """
    )

    assert flow_graph(catalog).flows == (Flow("a/raw", "a/out", "computed", ("shuffle lambda",)),)


def test_every_flow_of_a_cycle_through_two_derivations_is_feedback(catalog_of: Callable[..., CatalogSpec]) -> None:
    derive = "{{using: {{sqlite: {{}}}}, transforms: [{{name: t, source: {0}, shuffle: any, lambda: SELECT $id}}]}}"
    schema = "{type: object, properties: {id: {type: integer}}, required: [id]}"
    catalog = catalog_of(
        f"""
        collections:
          a/one: {{schema: {schema}, key: [/id], derive: {derive.format("a/two")}}}
          a/two: {{schema: {schema}, key: [/id], derive: {derive.format("a/one")}}}
        """
    )

    graph = flow_graph(catalog)

    assert {(flow.source, flow.target, flow.feedback) for flow in graph.flows} == {
        ("a/one", "a/two", True),
        ("a/two", "a/one", True),
    }


def test_an_empty_catalog_has_an_empty_graph(catalog_of: Callable[..., CatalogSpec]) -> None:
    graph = flow_graph(catalog_of("collections: {}"))

    assert (graph.nodes, graph.flows) == ((), ())


def test_graph_ends_with_materializations(catalog_of: Callable[..., CatalogSpec]) -> None:
    catalog = catalog_of(
        f"""
        collections:
          m/raw: {{schema: {SCHEMA}, key: [/id]}}
        materializations:
          m/view:
            endpoint: {{connector: {{image: "a/materialize-sqlite:v1", config: {{path: x}}}}}}
            bindings:
              - {{resource: {{table: rows}}, source: m/raw, priority: 2}}
              - {{resource: {{}}, source: {{name: m/raw, notBefore: 2024-01-01T00:00:00Z}}}}
          m/local:
            endpoint: {{local: {{command: [mine, --fast], config: {{}}}}}}
            bindings: []
            shards: {{disable: true}}
          m/remote:
            endpoint: {{address: "localhost:5000", config: {{}}}}
            bindings: []
        """
    )

    graph = flow_graph(catalog)

    assert graph.nodes[1:] == (
        Node("m/view", "materialization", ("materialize-sqlite",)),
        Node("m/local", "materialization", ("mine", "disabled")),
        Node("m/remote", "materialization", ("localhost:5000",)),
    )
    assert graph.flows == (
        Flow("m/raw", "m/view", "rows", ("priority 2",)),
        Flow("m/raw", "m/view", "m/raw", ("not before 2024-01-01T00:00:00Z",)),
    )
