"""The place of a data folder's metadata: in the folder, or in a PostgreSQL database that several machines share.

A folder whose metadata is elsewhere has the file `metadata.json` with the address, without a password. So every command
finds the metadata by the path of the folder. libpq finds the password as usual (`PGPASSWORD`, `~/.pgpass`, `passfile`);
or it is in `FLOW_METADATA`, if this address is otherwise the address in the file. The user may be another.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import orjson

from derive.durable import sync
from derive.errors import StorageError, UsageError

FILE = "metadata.json"
"""Name of the file in the data folder."""

VARIABLE = "FLOW_METADATA"
"""Variable of the environment with an address, perhaps with a password."""

_SCHEMES = ("postgresql", "postgres")
_SCHEMA = "flow"
_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
_UNQUOTED = re.compile(r"[\s#]|%(?![0-9A-Fa-f]{2})|%00")
"""Characters that stand in no address, except in a password that is not percent-encoded."""
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(:\d*)?")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class Place:
    """A PostgreSQL database with the metadata of a data folder.

    Attributes:
        url: the address for libpq.
        schema: schema of the tables; each data folder has its own.
        shown: the address without secrets, with the schema.
    """

    url: str
    schema: str
    shown: str

    @property
    def where(self) -> str:
        """Return the address without its user: users of one database may have different rights."""
        parts = urlsplit(self.shown)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def place_of(text: str) -> Place:
    """Return the place of an address, such as `postgresql://flow@db.example.com/flow?schema=shop`.

    >>> place_of("postgresql://flow:secret@db/flow?sslmode=require&schema=shop").shown
    'postgresql://flow@db/flow?sslmode=require&schema=shop'

    Raises:
        UsageError: the text is not such an address.
    """
    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _wrong(_NO_URL) from None  # errors of the library, as those of libpq, quote parts of the password
    if parts.scheme not in _SCHEMES:
        raise _wrong("it does not begin with postgresql://")
    user, _, hosts = parts.netloc.rpartition("@")
    if _UNQUOTED.search(text) or "@" in user or not all(map(_HOST.fullmatch, hosts.split(","))):
        raise _wrong(_NO_URL)
    schema = dict(parameters).get("schema", _SCHEMA)
    if not _NAME.fullmatch(schema):
        raise _wrong("the name of its schema is not at most 48 small letters, digits and '_'")
    others = [(name, value) for name, value in parameters if name != "schema"]
    public = [(name, value) for name, value in others if name not in _SECRETS]
    shown = _joined(parts._replace(netloc=_without_password(parts.netloc)), [*public, ("schema", schema)])
    return Place(_joined(parts, others), schema, shown)


def _joined(parts: SplitResult, parameters: list[tuple[str, str]]) -> str:
    query = urlencode(parameters, quote_via=quote)
    return f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"


_NO_URL = "it is not a URL; in a password, write %25 for '%', %40 for '@', %2F for '/', %3F for '?', %23 for '#'"


def _wrong(reason: str) -> UsageError:
    # The address is not shown, because it may have a password.
    return UsageError(
        f"the address of the metadata cannot be used: {reason}",
        hint="use an address such as postgresql://USER@HOST/DATABASE?schema=NAME",
    )


def read_place(root: Path) -> Place | None:
    """Return the place of a data folder's metadata; None if it is in the folder.

    Raises:
        StorageError: the file with the address is damaged.
    """
    file = root / FILE
    try:
        stored = place_of(orjson.loads(file.read_bytes())["metadata"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise StorageError(f"cannot read {file}: {exc.strerror or exc}") from exc
    except (ValueError, KeyError, TypeError, UsageError) as exc:
        raise StorageError(
            f"{file} is damaged: it does not name the place of the metadata",
            hint='write the file again: {"metadata": "postgresql://USER@HOST/DATABASE?schema=NAME"}',
        ) from exc
    with suppress(UsageError):
        given = place_of(os.environ.get(VARIABLE, ""))
        if given.where == stored.where:
            return given
    return stored


def write_place(root: Path, place: Place) -> None:
    """Record the place of a data folder's metadata durably."""
    draft = root / f"{FILE}.{os.getpid()}"
    draft.write_bytes(orjson.dumps({"metadata": place.shown}, option=orjson.OPT_INDENT_2) + b"\n")
    sync(draft)
    draft.replace(root / FILE)
    sync(root)
