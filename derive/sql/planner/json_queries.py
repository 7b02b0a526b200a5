"""Planner of `JSON_EXISTS`, `JSON_VALUE` and `JSON_QUERY`."""

from __future__ import annotations

from derive.algebra.expression import Call, Expression, Literal
from derive.algebra.types import ModifiedType, Type
from derive.errors import SqlError
from derive.functions.scalar.casts import fitting_function
from derive.functions.scalar.json_queries import RETURNED, value_function
from derive.functions.types.jsonpath import parsed_path
from derive.functions.types.type_info import READ_IN_ZONE
from derive.sql.parser.ast import FunctionCall, JsonBehavior, JsonQuery, QualifiedName, StringLiteral, TypeName
from derive.sql.planner.coercion import located, modifier_of_type, type_of
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.output import start_of


class JsonQueryPlanner:
    """Planner of the SQL/JSON queries of one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._coercion = expressions.coercion

    def plan(self, node: JsonQuery) -> Expression:
        """Plan a query.

        Raises:
            SqlError: the path is malformed (42601), or the type of RETURNING is not supported (0A000).
        """
        arguments = self._evaluated(node)
        if node.name == "json_exists":
            behavior = node.on_error.kind if node.on_error else "false"
            return Call("json_exists", (*arguments, Literal(behavior, Type.TEXT)), Type.BOOLEAN)
        default = "jsonb" if node.name == "json_query" else "text"
        name = node.returning or TypeName(default, (), node.offset)
        kind = self._returned(node, name)
        modifier = modifier_of_type(name)
        fit = ""
        numbers: list[int | None] = [None, None]
        if modifier is not None:
            fit = fitting_function(modifier, kind, is_cast=False)
            is_number = modifier.name is ModifiedType.NUMERIC
            numbers = [modifier.size, modifier.scale if is_number else None]
        quotes = "omit" if node.omits_quotes else "keep"
        behaviors = (behavior.kind if behavior else "null" for behavior in (node.on_empty, node.on_error))
        options = ",".join((node.wrapper, quotes, *behaviors))
        texts = (Literal(options, Type.TEXT), Literal(fit, Type.TEXT))
        sizes = (Literal(number, Type.INTEGER) for number in numbers)
        defaults = (self._default(behavior, kind) for behavior in (node.on_empty, node.on_error))
        value = Call(value_function(node.name, kind), (*arguments, *texts, *sizes, *defaults), kind)
        return self._coercion.fitted(value, modifier, is_cast=True)

    def _evaluated(self, node: JsonQuery) -> tuple[Expression, ...]:
        """Return the document, the path and the variables."""
        plan, offset = self._expressions.plan, node.offset
        document = self._coercion.explicit(plan(node.document), Type.JSONB, offset, start_of(node.document))
        at = start_of(node.path)
        path = self._coercion.cast(plan(node.path), Type.TEXT, at)
        if path is None:
            message = "JSON path expression must be of type jsonpath"
            raise SqlError("42804", message, offset=at)
        if isinstance(path, Literal) and isinstance(path.value, str):
            try:
                parsed_path(path.value)
            except SqlError as error:
                raise located(error, at) from None
        pairs = tuple(part for name, value in node.passing for part in (StringLiteral(name, offset), value))
        name = QualifiedName(None, "jsonb_build_object", offset)
        return document, path, plan(FunctionCall(name, pairs, offset, is_special=True))

    def _returned(self, node: JsonQuery, name: TypeName) -> Type:
        kind = type_of(name)
        is_in_zone = kind in READ_IN_ZONE and self._coercion.zone is not None
        if kind not in RETURNED or is_in_zone or (node.name == "json_value" and kind.element is not None):
            message = f"RETURNING {kind.value} is not supported for {node.name.upper()}"
            if is_in_zone:
                message += " outside of the time zone UTC"
            hint = "Return text, and cast it."
            raise SqlError("0A000", message, offset=name.offset, hint=hint)
        return kind

    def _default(self, behavior: JsonBehavior | None, kind: Type) -> Expression:
        if behavior is None or behavior.value is None:
            return Literal(None, kind)
        value = self._expressions.plan(behavior.value)
        at = start_of(behavior.value)
        cast = self._coercion.cast(value, kind, at, "explicit")
        if cast is None:
            message = f"could not convert type {value.type.value} to {kind.value}"
            raise SqlError("42846", message, offset=at)
        return cast
