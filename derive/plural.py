"""Numbers with their nouns, for messages: 1 document, 2 documents."""

from __future__ import annotations


def plural(noun: str) -> str:
    """Return the plural of a regular noun, which may have words before it.

    >>> [plural(noun) for noun in ("document", "key", "entry", "process", "match", "earlier cause")]
    ['documents', 'keys', 'entries', 'processes', 'matches', 'earlier causes']
    """
    if noun.endswith("y") and noun[-2:-1] not in set("aeiou"):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> [counted(number, "document") for number in (0, 1, 2000)]
    ['0 documents', '1 document', '2,000 documents']
    """
    return f"{number:,} {noun if number == 1 else plural(noun)}"
