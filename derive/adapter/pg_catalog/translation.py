"""Queries about PostgreSQL's catalogs in the words of DuckDB, whose grammar is PostgreSQL's.

What differs are the names of schemas, casts to `regclass` and its kin, `OPERATOR(…)`, `COLLATE`, regular expressions,
arrays that are written as texts, and what is asked of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from derive.adapter.pg_catalog.lexer import Kind, Token, tokens_of

_REGISTERED = ("regclass", "regtype", "regnamespace", "regrole", "regproc", "regprocedure")
_MATCHES = ("~", "~*", "!~", "!~*")
_TYPES = {
    "oid": "UINTEGER",
    "name": "VARCHAR",
    "char": "VARCHAR",
    "xid": "UINTEGER",
    "json": "VARCHAR",
    "jsonb": "VARCHAR",
}
_TYPES |= {"regproc": "VARCHAR", "regprocedure": "VARCHAR", "int2vector": "SMALLINT[]", "oidvector": "UINTEGER[]"}
_TYPES |= {"pg_node_tree": "VARCHAR", "aclitem": "VARCHAR"}
_FUNCTIONS = {
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_agg": "json_group_array",
    "format": "pg_format",
}
_ARRAY = re.compile(r"'\{([\w,\s]*)\}'")
_OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|`?]+")


def translated(text: str, arguments: Sequence[str], words: Mapping[str, str]) -> str:
    """A query for DuckDB.

    Args:
        text: the query.
        arguments: expressions in place of `$1` and so on.
        words: expressions in place of words such as `session_user`.
    """
    tokens = [token for token in tokens_of(text) if token.kind is not Kind.SPACE]
    return " ".join(_Translation(tokens, arguments, words).pieces())


class _Translation:
    """Goes through tokens once; what was said already may still be wrapped by a cast that follows."""

    def __init__(self, tokens: Sequence[Token], arguments: Sequence[str], words: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._arguments = arguments
        self._words = words
        self._pieces: list[str] = []
        self._at = 0

    def pieces(self) -> list[str]:
        while self._at < len(self._tokens):
            if not (self._schema() or self._operator() or self._collation() or self._cast() or self._match()):
                self._pieces.append(self._plain(self._tokens[self._at]))
                self._at += 1
        return self._pieces

    def _ahead(self, distance: int) -> str:
        at = self._at + distance
        return self._tokens[at].word if 0 <= at < len(self._tokens) else ""

    def _schema(self) -> bool:
        """`pg_catalog.` is left out; `information_schema.` is part of a name, but for its types and functions."""
        word = self._ahead(0)
        if word not in ("pg_catalog", "information_schema") or self._ahead(1) != "." or self._ahead(-1) == ".":
            return False
        is_name = word == "information_schema" and self._ahead(3) != "(" and self._ahead(-1) != "::"
        if is_name:
            self._pieces.append(f"information_schema_{self._ahead(2)}")
        self._at += 3 if is_name else 2
        return True

    def _operator(self) -> bool:
        """`OPERATOR(pg_catalog.~)` is the operator itself."""
        if self._ahead(0) != "operator" or self._ahead(1) != "(":
            return False
        end = self._at + 2
        while end < len(self._tokens) and self._tokens[end].text != ")":
            end += 1
        name = "".join(token.text for token in self._tokens[self._at + 2 : end] if _OPERATOR.fullmatch(token.text))
        self._tokens = [*self._tokens[: self._at], Token(Kind.SIGN, name), *self._tokens[end + 1 :]]
        return True

    def _collation(self) -> bool:
        """Texts have one order here."""
        if self._ahead(0) != "collate":
            return False
        self._at += 4 if self._ahead(2) == "." else 2
        return True

    def _cast(self) -> bool:
        """A text cast to `regclass` is an oid, and an oid cast to it is a name."""
        is_cast = self._ahead(0) in ("::", "as")
        skipped = 3 if self._ahead(1) == "pg_catalog" and self._ahead(2) == "." else 1
        kind = self._ahead(skipped)
        if not is_cast or kind not in _REGISTERED or (self._ahead(0) == "as" and self._ahead(skipped + 1) != ")"):
            return False
        begin = self._operand()
        operand = self._pieces[begin:]
        begin -= self._ahead(0) == "as" and 2  # CAST ( operand AS kind )
        self._at += skipped + 1 + (self._ahead(0) == "as")
        is_text = len(operand) == 1 and operand[0].startswith("'")
        is_number = self._ahead(0) == "::" and self._ahead(1) in ("oid", "int4", "int8", "integer", "bigint")
        if is_text:
            operand = [operand[0].replace("'pg_catalog.", "'")]
        if kind in ("regproc", "regprocedure") or (is_number and not is_text):
            self._pieces[begin:] = ["(", *operand, ")"]
        else:
            function = f"to_{kind}" if is_text else f"{kind}_name"
            self._pieces[begin:] = [function, "(", *operand, ")"]
        return True

    def _operand(self) -> int:
        """Where the operand of a cast that follows now begins among the pieces."""
        if self._ahead(0) == "as":
            depth, begin = 0, len(self._pieces)
            while begin > 0 and (depth or self._pieces[begin - 1] != "("):
                depth += {")": 1, "(": -1}.get(self._pieces[begin - 1], 0)
                begin -= 1
            return begin
        begin = len(self._pieces) - 1
        if self._pieces[begin:] and self._pieces[begin] in (")", "]"):
            depth = 1
            while begin > 0 and depth:
                begin -= 1
                depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(self._pieces[begin], 0)
            if begin > 0 and re.fullmatch(r"\w+", self._pieces[begin - 1]):
                begin -= 1
        while begin > 1 and self._pieces[begin - 1] == ".":
            begin -= 2
        return max(0, begin)

    def _match(self) -> bool:
        """A regular expression matches any part of a text."""
        sign = self._ahead(0)
        if sign not in _MATCHES or self._at + 1 >= len(self._tokens):
            return False
        pattern = self._plain(self._tokens[self._at + 1])
        if not pattern.startswith("'"):
            return False
        flags = "(?is)" if sign.endswith("*") else "(?s)"
        self._pieces += [sign.rstrip("*"), f"'{flags}.*(?:{pattern[1:-1]}).*'"]
        self._at += 2
        return True

    def _plain(self, token: Token) -> str:
        if token.kind is Kind.PARAMETER:
            index = int(token.text[1:]) - 1
            return self._arguments[index] if index < len(self._arguments) else "NULL"
        if token.kind is Kind.TEXT and (match := _ARRAY.fullmatch(token.text)):
            return f"'[{match[1]}]'"
        word = token.word
        if self._ahead(-1) == "::" and word in _TYPES:
            return _TYPES[word]
        if token.kind is Kind.WORD and self._ahead(-1) not in (".", "as"):
            if word in self._words and self._ahead(1) not in ("(", "."):
                return self._words[word]
            if word in _FUNCTIONS and self._ahead(1) == "(":
                return _FUNCTIONS[word]
        return token.text
