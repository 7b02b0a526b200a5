"""Translation of catalog queries to DuckDB, whose grammar follows PostgreSQL's.

Different are the names of schemas, casts to `regclass` and similar types, `OPERATOR(…)`, `COLLATE`, regular
expressions, array literals, and functions of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from derive.errors import SqlError
from derive.sql.parser.tokens import RESERVED
from derive.sql.pg_catalog.lexer import Kind, Token, tokens_of
from derive.sql.pg_catalog.relations import columns_of_kind
from derive.sql.pg_types import elements_of

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
_BEHIND_RELATIONS = frozenset(
    """, ) ; where join left right full inner cross natural on using group having order limit offset fetch union except
    intersect""".split()  # noqa: SIM905 (a list would be a page)
) | {""}
"""Tokens that follow a relation without an alias."""
_COMPARISONS = ("=", "<>", "!=")
_TEXTUAL = frozenset({"||", "quote_ident", "pg_format"})
"""Functions and operators with text results, which are names in a cast to an oid type."""
_VECTORS = ("indkey", "indoption", "indclass", "indcollation", "proargtypes")
"""Columns whose elements are counted from 0; names of expressions over them have the same ending."""
_OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|`?]+")


def translated(text: str, arguments: Sequence[str], words: Mapping[str, str]) -> str:
    """Translate a query to DuckDB.

    Args:
        text: the query.
        arguments: expressions that replace `$1` and so on.
        words: expressions that replace words such as `session_user`.
    """
    tokens = [token for token in tokens_of(text) if token.kind is not Kind.SPACE]
    return " ".join(_Translation(tokens, arguments, words).pieces())


class _Translation:
    """A single pass over the tokens; a later cast may wrap earlier output. Each change returns whether it applies."""

    def __init__(self, tokens: Sequence[Token], arguments: Sequence[str], words: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._arguments = arguments
        self._words = words
        self._pieces: list[str] = []
        self._at = 0

    def pieces(self) -> list[str]:
        changes = (
            *(self._schema, self._operator, self._collation, self._cast, self._match),
            *(self._array, self._any, self._subscript, self._subscripts, self._unnest),
        )
        while self._at < len(self._tokens):
            if not any(change() for change in changes):
                self._pieces.append(self._plain(self._tokens[self._at]))
                self._at += 1
        return self._pieces

    def _ahead(self, distance: int) -> str:
        at = self._at + distance
        return self._tokens[at].word if 0 <= at < len(self._tokens) else ""

    def _schema(self) -> bool:
        """Remove `pg_catalog.`; make `information_schema.` a part of the name, except for types and functions."""
        word = self._ahead(0)
        if word not in ("pg_catalog", "information_schema") or self._ahead(1) != "." or self._ahead(-1) == ".":
            return False
        is_path = word == "pg_catalog" or self._ahead(3) in ("(", ".") or self._ahead(-1) == "::"
        if not is_path:
            name = self._ahead(2)
            self._pieces.append(f"information_schema_{name}")
            if self._ahead(3) in _BEHIND_RELATIONS:
                self._pieces += ["as", name]
        self._at += 2 if is_path else 3
        return True

    def _operator(self) -> bool:
        """Replace `OPERATOR(pg_catalog.~)` with the operator."""
        if self._ahead(0) != "operator" or self._ahead(1) != "(":
            return False
        end = self._at + 2
        while end < len(self._tokens) and self._tokens[end].text != ")":
            end += 1
        name = "".join(token.text for token in self._tokens[self._at + 2 : end] if _OPERATOR.fullmatch(token.text))
        self._tokens = [*self._tokens[: self._at], Token(Kind.SIGN, name), *self._tokens[end + 1 :]]
        return True

    def _collation(self) -> bool:
        """Remove COLLATE, since texts have one order."""
        if self._ahead(0) != "collate":
            return False
        self._at += 4 if self._ahead(2) == "." else 2
        return True

    def _cast(self) -> bool:
        """Replace a cast of a text to `regclass` with an oid, and a cast of an oid with a name."""
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
        is_name = is_text or not _TEXTUAL.isdisjoint(operand)
        is_number = self._ahead(0) == "::" and self._ahead(1) in ("oid", "int4", "int8", "integer", "bigint")
        if is_text:
            operand = [operand[0].replace("'pg_catalog.", "'")]
        if kind == "regprocedure" and is_text:
            operand = [operand[0].partition("(")[0].rstrip("'") + "'"]
        if self._ahead(0) == "[" and self._ahead(1) == "]":
            self._at += 2
            self._pieces[begin:] = ["list_transform", "(", *operand, f", lambda o: {kind}_name(o))"]
        elif kind in ("regproc", "regprocedure") or (is_number and not is_name):
            self._pieces[begin:] = ["(", *operand, ")"]
        else:
            is_shown = not is_name or (self._ahead(0) == "::" and self._ahead(1) in ("text", "varchar", "name"))
            operand = [f"to_{kind}", "(", *operand, ")"] if is_name else operand
            self._pieces[begin:] = [f"{kind}_name", "(", *operand, ")"] if is_shown else operand
        return True

    def _operand(self) -> int:
        """Return the start of the operand of a following cast, in the output."""
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
            if begin > 0 and re.fullmatch(r"\w+", self._pieces[begin - 1]) and self._pieces[begin - 1] not in RESERVED:
                begin -= 1
        while begin > 1 and self._pieces[begin - 1] == ".":
            begin -= 2
        return max(0, begin)

    def _match(self) -> bool:
        """Replace a regular expression match, which may match any part of a text."""
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

    def _array(self) -> bool:
        """Replace an array literal with a list, if its context is an array."""
        token = self._tokens[self._at]
        is_cast = self._ahead(1) == "::" and "[" in (self._ahead(3), self._ahead(5))
        is_any = self._ahead(-1) == "(" and self._ahead(-2) in ("any", "all", "some")
        if token.kind is not Kind.TEXT or not token.text.startswith("'{") or not (is_cast or is_any):
            return False
        try:
            elements = elements_of(token.text[1:-1].replace("''", "'"))
        except SqlError:
            return False
        written = ("NULL" if element is None else "'" + element.replace("'", "''") + "'" for element in elements)
        self._pieces.append(f"[{', '.join(written)}]")
        self._at += 1
        return True

    def _any(self) -> bool:
        """Replace a comparison with any of `ARRAY(query)` by a comparison with any of the query."""
        if [self._ahead(distance) for distance in range(-2, 2)] != ["any", "(", "array", "("]:
            return False
        end = self._commas()[1]
        if end + 1 >= len(self._tokens) or self._tokens[end + 1].text != ")":
            return False
        self._tokens = [*self._tokens[:end], *self._tokens[end + 1 :]]
        self._at += 2
        return True

    def _subscript(self) -> bool:
        """Adjust a subscript of a vector, whose elements are counted from 0."""
        if self._ahead(0) != "[" or not self._ahead(-1).endswith(_VECTORS):
            return False
        self._pieces += ["[", "1", "+"]
        self._at += 1
        return True

    def _subscripts(self) -> bool:
        """Replace `generate_subscripts` with rows, also in FROM."""
        if self._ahead(0) != "generate_subscripts" or self._ahead(1) != "(":
            return False
        commas, end = self._commas()
        if len(commas) != 1:
            return False
        array = self._tokens[self._at + 2 : commas[0]]
        first = 0 if array and array[-1].word.endswith(_VECTORS) else 1
        written = _Translation(array, self._arguments, self._words).pieces()
        self._pieces += ["unnest", "(", f"range({first}, {first} + len(", *written, "))", ")"]
        self._at = end + 1
        return True

    def _unnest(self) -> bool:
        """Replace `unnest` of several arrays side by side."""
        if self._ahead(0) != "unnest" or self._ahead(1) != "(":
            return False
        commas, end = self._commas()
        if not commas:
            return False
        behind = [token.word for token in self._tokens[end + 1 : end + 3]]
        is_counted = behind == ["with", "ordinality"]
        if is_counted:
            self._tokens = [*self._tokens[: end + 1], *self._tokens[end + 3 :]]
        self._pieces.append("unnest_counted" if is_counted else "unnest_pairs")
        self._at += 1
        return True

    def _commas(self) -> tuple[list[int], int]:
        """Return the positions of the commas between the arguments of the current call, and its end."""
        depth = 0
        commas: list[int] = []
        for at in range(self._at + 1, len(self._tokens)):
            sign = self._tokens[at].text
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign, 0)
            if depth == 0:
                return commas, at
            if depth == 1 and sign == ",":
                commas.append(at)
        return [], len(self._tokens)

    def _plain(self, token: Token) -> str:
        if token.kind is Kind.PARAMETER:
            index = int(token.text[1:]) - 1
            return self._arguments[index] if index < len(self._arguments) else "NULL"
        if token.kind is Kind.TEXT and self._ahead(1) != "::" and (match := _ARRAY.fullmatch(token.text)):
            return f"'[{match[1]}]'"
        if token.text == "0" and self._ahead(-1) in _COMPARISONS and self._ahead(-2) in columns_of_kind("regproc"):
            return "'-'"
        return self._word(token) if token.kind is Kind.WORD else token.text

    def _word(self, token: Token) -> str:
        """Translate a word; names become lower case, also as column names."""
        word = token.word
        if self._ahead(-1) == "::" and word in _TYPES:
            return _TYPES[word]
        if self._ahead(-1) not in (".", "as"):
            if word in self._words and self._ahead(1) not in ("(", "."):
                return self._words[word]
            if word in _FUNCTIONS and self._ahead(1) == "(":
                return _FUNCTIONS[word]
        return word
