"""The connector: its configuration, the constraints of its formats, and the preparation of a folder."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.kit import (
    Application,
    ConnectorSpec,
    Constraint,
    ConstraintType,
    Field,
    Opening,
    ValidatedBinding,
    Validation,
)
from connectors.materialize_files.formats import DELETED, FORMATS, kind_of
from connectors.materialize_files.manifest import reporting
from connectors.materialize_files.session import FilesSession, folder_of
from derive.document.pointer import JSON
from derive.durable import make_folders
from derive.errors import DeniedError, EndpointError

_ENDPOINT: JSON = {
    "title": "Files",
    "type": "object",
    "required": ["path"],
    "properties": {"path": {"type": "string", "minLength": 1, "description": "Folder of the files."}},
    "additionalProperties": False,
}
_RESOURCE: JSON = {
    "title": "Files of a collection",
    "type": "object",
    "required": ["path", "format"],
    "properties": {
        "path": {
            "type": "string",
            "pattern": r"^[^./\\\u0000][^/\\\u0000]*(/[^./\\\u0000][^/\\\u0000]*)*$",
            "description": "Folder of the collection's files, below the endpoint's folder.",
        },
        "format": {"enum": sorted(FORMATS), "description": "Format of the files."},
        "delta_updates": {"const": True, "description": "Files are only added; other updates are not supported."},
    },
    "additionalProperties": False,
}


class FilesConnector:
    """Adds a file for each binding and each transaction of a shard."""

    name = "materialize-files"

    def spec(self) -> ConnectorSpec:
        """Return the configuration schemas."""
        return ConnectorSpec(_ENDPOINT, _RESOURCE, "docs/materialize-connectors.md#files")

    def validate(self, request: Validation) -> list[ValidatedBinding]:
        """Return the constraints of the formats on fields."""
        bindings = []
        for binding in request.bindings:
            lines = binding.resource["format"] == "jsonl"
            constraints = {
                name: _of_line(field) if lines else _of_column(field)
                for name, field in binding.collection.fields.items()
            }
            bindings.append(ValidatedBinding((binding.resource["path"],), constraints, delta_updates=True))
        return bindings

    def apply(self, request: Application) -> str:
        """Create the folders."""
        root = Path(request.materialization.config["path"])
        paths = [root / binding.resource["path"] for binding in request.materialization.bindings]
        missing = [path for path in (folder_of(root, request.materialization.name), *paths) if not path.is_dir()]
        with reporting(f"cannot create folders in {root}"):
            for path in missing:
                if not request.dry_run:
                    make_folders(path)
        nearest = next(path for path in (root, *root.parents) if path.exists())
        if not nearest.is_dir():
            raise EndpointError(f"{nearest} is not a folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise DeniedError(
                f"the user of the connector cannot write into {nearest}",
                hint="grant the user of the connector the right to write there",
            )
        return "\n".join(f"make the folder {path}" for path in dict.fromkeys(missing))

    def open(self, opening: Opening) -> FilesSession:
        """Open a session."""
        return FilesSession(opening, Path(opening.materialization.config["path"]))


def _of_column(field: Field) -> Constraint:
    if field.name == DELETED:
        return Constraint(ConstraintType.FIELD_FORBIDDEN, f"'{DELETED}' is the column that marks deleted rows")
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "it is part of the key")
    if not field.pointer:
        return Constraint(ConstraintType.FIELD_OPTIONAL, "a whole document is stored in a column of text")
    if kind_of(field) == "json":
        return Constraint(ConstraintType.FIELD_OPTIONAL, "its values are stored as JSON in a column of text")
    return Constraint(ConstraintType.LOCATION_RECOMMENDED, "its values fit a column of one type")


def _of_line(field: Field) -> Constraint:
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "it is part of the key")
    if not field.pointer:
        return Constraint(ConstraintType.FIELD_REQUIRED, "each line is a whole document")
    return Constraint(ConstraintType.FIELD_FORBIDDEN, "each line is a whole document, which contains the field")
