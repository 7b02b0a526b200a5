"""The location of a data folder's segments, as its metadata has it."""

from __future__ import annotations

from derive.storage.location import ObjectFolder
from derive.storage.metadata.transaction import Transaction


def read_location(db: Transaction) -> ObjectFolder | None:
    """Return the location of the segments; None if they are in the data folder."""
    url: str | None = db.execute("SELECT url FROM location").get
    return None if url is None else ObjectFolder(url)


def record_location(db: Transaction, location: ObjectFolder | None) -> None:
    """Record the location of the segments; None for the data folder."""
    db.execute("DELETE FROM location")
    if location is not None:
        db.execute("INSERT INTO location (url) VALUES (?)", (location.url,))
