"""The catalog: the files that a person writes, beginning with `flow.yaml`, and the specs that are built from them.

`build` turns the files of a catalog into validated specs and issues, and adds the issues of its code.
`generate` writes files for authors, and `graph` describes the data flow as plain data.

`definitions` has the written values with their positions. Each of these parts uses only the parts before it:

- `language` defines the syntax of files, and parses files.
- `loading` follows a catalog through its files, and returns definitions.
- `schemas` examines the schemas of collections.
- `rules` checks keys, transforms, selectors and tests.

All parts add issues to a `Report` of `definitions`.
"""

from derive.catalog.build import load, load_without_tests

__all__ = ["load", "load_without_tests"]
