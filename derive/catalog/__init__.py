"""The catalog: the files that a person writes, beginning with `flow.yaml`, and the specs that are built from them.

`build` turns the files of a catalog into validated specs and issues, and `check` adds the issues of its code.
`generate` writes files for authors, and `graph` describes the data flow as plain data.

`definitions` hold the written values with their positions. Each of the other parts uses only those before it:
`language` defines the syntax of files and parses them; `loading` follows a catalog through its files to definitions;
`schemas` examines the schemas of collections; `rules` check keys, transforms, selectors and tests. All of them add
issues to a `report`.
"""

from derive.catalog.build import load, load_without_tests

__all__ = ["load", "load_without_tests"]
