"""Types for a derivation's module: models of documents, requests and responses, and the base class of its class."""

from __future__ import annotations

import keyword
import re
from itertools import chain

from connectors.derive_python.columns import columns_of
from connectors.module_kit.named_schemas import camel, endless_names, named_shapes, type_name
from derive.document.pointer import JSON
from derive.protocol.authoring import GENERATED
from derive.protocol.specs import DerivationSpec
from derive.schema.shape import ALL, Shape

RESERVED = ("flush", "reset", "start_commit", "state")
"""Members of the class that the runtime uses; the method of a transform must not have these names."""

_TAKEN = frozenset(
    {
        "ABC", "Annotated", "Any", "AsyncIterator", "Awaitable", "BaseModel", "Callable", "ConfigDict",
        "ConnectorState", "Document", "Documents", "EndpointConfig", "Field", "IDerivation", "Integer", "Iterable",
        "Literal", "Number", "Protocol", "Published", "Request", "Response", "State", "Struct", "TYPE_CHECKING",
        "TypeAliasType", "UNSET", "Union", "UnsetType",
    }
)  # fmt: skip

_MODEL_MEMBERS = frozenset(
    {
        "copy", "construct", "dict", "from_orm", "json", "parse_file", "parse_obj", "parse_raw", "schema",
        "schema_json", "update_forward_refs", "validate", "self", "cls",
    }
)  # fmt: skip
"""Members of pydantic's models that no field may hide."""

_ANNOTATIONS = frozenset(
    {
        "Annotated", "Any", "Field", "Integer", "Literal", "Number", "Struct", "TYPE_CHECKING", "UNSET", "UnsetType",
        "bool", "dict", "float", "int", "list", "str", "tuple",
    }
)  # fmt: skip
"""Names in the bodies of models, which no field may hide: Python looks up an annotation among the fields first."""

_SCALARS = {
    "boolean": "bool",
    "integer": "Integer",
    "fractional": "Number",
    "string": "str",
    "null": "None",
}
"""Python types by JSON type, in the order of a union."""


def method_of(transform: str) -> str:
    """Return the name of the method that implements a transform, in snake case.

    >>> method_of("fromHTTPRequests")
    'from_http_requests'
    """
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", transform)
    return _identifier(re.sub(r"_+", "_", re.sub(r"\W", "_", words)).strip("_").lower(), "transform")


def read_of(transform: str) -> str:
    """Return the name of the class of the method's argument, within `Request`."""
    return type_name(f"ReadFrom{_subject(transform)}")


def source_of(transform: str) -> str:
    """Return the name of the model of the documents that a transform reads."""
    return type_name(f"SourceFrom{_subject(transform)}")


def _subject(transform: str) -> str:
    """Return a transform's name in upper camel case, without `From` before it."""
    name = camel(transform)
    return name[4:] if name.startswith("From") and name[4:5].isupper() else name


def package_of(collection: str) -> str:
    """Return the package of a derivation's types.

    >>> package_of("acme-bank/2024/balances")
    'acme_bank._2024.balances'
    """
    return ".".join(_identifier(re.sub(r"\W", "_", part), "_") for part in collection.split("/"))


def _identifier(name: str, empty: str) -> str:
    name = name or empty
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def field_of(name: str) -> str:
    """Return the name of a field for a property.

    >>> field_of("_meta"), field_of("first-name"), field_of("class")
    ('m_meta', 'first_name', 'class_')
    """
    field = re.sub(r"\W", "_", name)
    if not field[:1].isidentifier() or field.startswith("_"):
        field = f"m{field}" if field.startswith("_") else f"m_{field}"
    field = _identifier(field, "m_")
    is_hidden = field in _MODEL_MEMBERS | _ANNOTATIONS or field.startswith("model_")
    return f"{field}_" if is_hidden else field


def generate_package(spec: DerivationSpec, config_schema: JSON, library: str = "pydantic") -> str:
    """Return the text of the package that a derivation's module imports.

    Args:
        spec: the derivation.
        config_schema: schema of the derivation's `config`.
        library: library of the models of documents, `pydantic` or `msgspec`.
    """
    declarations = _StructDeclarations if library == "msgspec" else _Declarations
    base, fields = ("(Struct, eq=False)", _STRUCT_FIELDS) if library == "msgspec" else ("", _FIELDS)
    taken = {*_TAKEN, *(source_of(transform.name) for transform in spec.transforms)}
    parts = [
        _HEAD.format(head=f"# {GENERATED} from the schemas of {spec.name} and of its sources: changes are lost."),
        *([_STRUCTS] if library == "msgspec" else []),
        *declarations(spec.collection.write_schema, "Document", taken).texts(),
    ]
    reads, methods = [], []
    for transform in spec.transforms:
        source, read = source_of(transform.name), read_of(transform.name)
        parts += declarations(spec.sources[transform.input.source].read_schema, source, taken).texts()
        columns = ", ".join(map(str, columns_of(spec.sources[transform.input.source].read_schema)))
        reads.append(_READ.format(read=read, base=base, columns=columns, fields=fields.format(source=source)))
        methods.append(_METHOD.format(method=method_of(transform.name), read=read))
    parts += _Declarations(config_schema, "EndpointConfig", taken).texts()
    parts.append(_ENVELOPES.format(reads="".join(reads)))
    columns = ", ".join(map(str, columns_of(spec.collection.write_schema)))
    parts.append(_BASE.format(methods="".join(methods), columns=columns))
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


_HEAD = '''\
{head}
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Union

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema
from typing_extensions import TypeAliasType

if TYPE_CHECKING:
    import pyarrow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _is_none(value: object) -> bool:
    return value is None


class _Model(BaseModel):
    """A part of a document. Properties that the schema does not name are kept."""

    __flow_is_partial__ = True  # properties that were not set are omitted

    if not TYPE_CHECKING:  # type checkers shall refuse other properties
        model_config = ConfigDict(
            extra="allow", strict=True, validate_by_name=True, validate_by_alias=True, protected_namespaces=()
        )


Number = Union[int, float]
# JSON Schema takes 1.0 as an integer.
Integer = Annotated[
    int,
    GetPydanticSchema(
        lambda source, handler: core_schema.union_schema(
            [
                core_schema.int_schema(strict=True),
                core_schema.no_info_after_validator_function(
                    int, core_schema.float_schema(strict=True, multiple_of=1.0, allow_inf_nan=False)
                ),
            ],
            mode="left_to_right",
        )
    ),
]
'''

_STRUCTS = """
from msgspec import UNSET, Struct, UnsetType

if not TYPE_CHECKING:
    Integer = Number
"""

_READ = '''
    class {read}{base}:
        """A document to process, and its times."""

        # with @arrow: flow_row: int64, {columns}, and flow_published_at and flow_now: timestamp
{fields}
        @property
        def published_at(self) -> datetime:
            """Return the time at which the document was published."""
            return _EPOCH + timedelta(microseconds=self._published)

        @property
        def now(self) -> datetime:
            """Return the time at which the document is processed: the publication and the read delay."""
            return datetime.now(UTC)
'''

_FIELDS = """\
        __slots__ = ("_published", "doc")
        doc: {source}

        def __init__(self, doc: {source}, published: int) -> None:
            self.doc = doc
            self._published = published
"""

_STRUCT_FIELDS = """\
        doc: {source}
        _published: int
"""

_ENVELOPES = '''
class ConnectorState(BaseModel):
    """State for the next transactions: a replacement, or with `merge_patch` a merge patch (RFC 7396)."""

    updated: dict[str, Any]
    merge_patch: bool = False


State = ConnectorState


class Request:
    """Messages of the runtime to the class."""

    class Open(BaseModel):
        """The begin of a transaction."""

        state: dict[str, Any]
        config: Any = None

    class StartCommit(BaseModel):
        """The end of a transaction."""
{reads}

class Response:
    """Answers of the class to the runtime."""

    class Flushed(BaseModel):
        """The end of a tick; `state` is stored with the transaction."""

        state: ConnectorState | None = None

    class StartedCommit(BaseModel):
        """The end of a transaction."""

        state: ConnectorState | None = None
'''

_METHOD = """
    @abstractmethod
    def {method}(self, read: Request.{read}) -> Published: ...
"""

_BASE = '''
class _Columns(Protocol):
    """A table of pyarrow, polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def arrow(method: Callable[[Any, pyarrow.RecordBatch], Union[_Columns, Awaitable[_Columns]]]) -> Any:
    """Mark a method that takes documents as a batch of columns, and returns a table of documents."""
    # columns of the table: flow_row: int64, {columns}
    method.__flow_arrow__ = True  # type: ignore[attr-defined]
    return method


Documents = Union[Document, dict[str, Any], Iterable[Union[Document, dict[str, Any]]], None]
Published = Union[AsyncIterator[Union[Document, dict[str, Any]]], Documents, Awaitable[Documents]]


class IDerivation(ABC):
    """The base class of the class `Derivation`: one method for each transform."""

    _flow_keyed: Any = None

    def __init__(self, open: Request.Open, config: EndpointConfig | None = None) -> None:
        pass

    @property
    def state(self) -> Any:
        """Return the values of the document's shuffle key, a dict that is stored with the transaction."""
        if self._flow_keyed is not None:
            return self._flow_keyed.values()
        if "state" in self.__dict__:
            return self.__dict__["state"]
        raise AttributeError("self.state has values only while a document is processed")

    @state.setter
    def state(self, value: Any) -> None:
        if self._flow_keyed is None:
            self.__dict__["state"] = value
        else:
            self._flow_keyed.replace(value)
{methods}
    def flush(self, state_patches: list[Any], flushed: Response.Flushed) -> Any:
        """Publish documents at the end of each tick that had documents."""

    def start_commit(self, start_commit: Request.StartCommit) -> Any:
        """Return the state for the next transactions."""

    def reset(self) -> Any:
        """Forget everything, between catalog tests."""
'''


class _Declarations:
    """The models of one schema, each after the models that it uses."""

    def __init__(self, schema: JSON, name: str, taken: set[str]) -> None:
        self._taken = taken
        self._texts: list[str] = []
        shapes = named_shapes(schema, name, taken)
        self._endless = endless_names(shapes)
        self._named = shapes.keys()
        for declared, shape in reversed(list(shapes.items())):
            self._declare(declared, shape)

    def texts(self) -> list[str]:
        return self._texts

    def _declare(self, name: str, shape: Shape) -> None:
        if name in self._endless:
            self._texts.append(f"{name} = Any")
        elif _is_model(shape):
            self._model(name, shape)
        elif shape.types == frozenset({"object"}) and not shape.alternatives and not shape.name:
            self._texts.append(f"class {name}(_Model):\n{_comment(shape, '    ')}    pass")
        else:
            self._texts.append(f'{name} = TypeAliasType("{name}", "{self._type(shape, name)}")')

    def _model(self, name: str, shape: Shape) -> None:
        lines, parameters = list[str](), list[str]()
        used = set[str]()
        for prop, part in shape.properties.items():
            field = field_of(prop)
            while field in used or field in self._named:
                field += "_"
            used.add(field)
            kind = self._type(part, name + camel(prop))
            arguments = []
            if prop not in shape.required:
                arguments.append("default=None")
                if "None" not in kind.split(" | ") and kind != "Any":
                    kind = f"{kind} | None"
                    arguments.append("exclude_if=_is_none")
            if field != prop:
                arguments.append(f"validation_alias={prop!r}, serialization_alias={prop!r}")
            value = f" = Field({', '.join(arguments)})" if arguments else ""
            lines.append(f"{_comment(part, '    ')}    {field}: {kind}{value}")
            parameters.append(f"{field}: {kind}{'' if prop in shape.required else ' = None'}")
        constructor = f"        def __init__(self, *, {', '.join(parameters)}) -> None: ..."
        lines += ["", "    if TYPE_CHECKING:", "", constructor]
        self._texts.append(f"class {name}(_Model):\n{_comment(shape, '    ')}" + "\n".join(lines))

    def _type(self, shape: Shape, name: str) -> str:
        """Return the type of a location; `name` is the name of a model that the location may need."""
        return " | ".join(self._alternatives(shape, name)) or "Any"

    def _alternatives(self, shape: Shape, name: str) -> list[str]:
        if shape.name is not None:
            return ["Any"] if shape.name in self._endless else [shape.name]
        if shape.alternatives:
            parts = (self._alternatives(part, f"{name}{place}") for place, part in enumerate(shape.alternatives, 1))
            united = dict.fromkeys(chain(*parts))
            return ["Any"] if "Any" in united else sorted(united, key=lambda kind: kind == "None")
        if not shape.types or shape.types == ALL:
            return ["Any"]
        kinds = []
        if "object" in shape.types:
            kinds.append(self._object(shape, name))
        if "array" in shape.types:
            kinds.append(self._array(shape, name))
        scalars = [scalar for scalar in _SCALARS if scalar in shape.types]
        if "fractional" in scalars and "integer" in scalars:
            scalars.remove("integer")
        if shape.values is not None:
            literals = [value for value in shape.values if isinstance(value, str | bool)]
            if literals:
                kinds.append(f"Literal[{', '.join(map(repr, literals))}]")
                scalars = [scalar for scalar in scalars if scalar not in {"string", "boolean"}]
        return [*kinds, *(_SCALARS[scalar] for scalar in scalars)]

    def _object(self, shape: Shape, name: str) -> str:
        if _is_model(shape) and shape.values is None:
            declared = type_name(name)
            number = 1
            while declared in self._taken:
                number += 1
                declared = type_name(f"{name}{number}")
            self._taken.add(declared)
            self._model(declared, shape)
            return declared
        additional = None if shape.values is not None else shape.additional
        others = "Any" if additional is None else self._type(additional, f"{name}Value")
        return f"dict[str, {others}]"

    def _array(self, shape: Shape, name: str) -> str:
        if shape.values is not None:
            return "list[Any]"
        most = shape.max_items
        prefix = [self._type(part, f"{name}{place}") for place, part in enumerate(shape.prefix[:most], 1)]
        if prefix and shape.min_items == most == len(prefix):
            return f"Annotated[tuple[{', '.join(prefix)}], Field(strict=False)]"
        rest = "Any" if shape.items is None else self._type(shape.items, f"{name}Item")
        kinds = dict.fromkeys([*prefix, rest])
        return f"list[{'Any' if 'Any' in kinds else ' | '.join(kinds)}]"


class _StructDeclarations(_Declarations):
    """The structs of one schema, for msgspec."""

    def _declare(self, name: str, shape: Shape) -> None:
        if shape.types == frozenset({"object"}) and not shape.properties and not shape.alternatives and not shape.name:
            self._texts.append(f"class {name}(Struct, kw_only=True):\n{_comment(shape, '    ')}    pass")
        else:
            super()._declare(name, shape)

    def _model(self, name: str, shape: Shape) -> None:
        lines, renamed = list[str](), dict[str, str]()
        for prop, member in shape.properties.items():
            field = field_of(prop)
            while field in renamed or field in self._named:
                field += "_"
            renamed[field] = prop
            kind = self._type(member, name + camel(prop))
            value = "" if prop in shape.required else " = UNSET"
            kind += "" if prop in shape.required or kind == "Any" else " | UnsetType"
            lines.append(f"{_comment(member, '    ')}    {field}: {kind}{value}")
        others = {field: prop for field, prop in renamed.items() if field != prop}
        options = "kw_only=True" + (f", rename={others!r}" if others else "")
        self._texts.append(f"class {name}(Struct, {options}):\n{_comment(shape, '    ')}" + "\n".join(lines))

    def _alternatives(self, shape: Shape, name: str) -> list[str]:
        """Return the alternatives of a union: msgspec takes one object, one array, and literals only of texts."""
        kinds = super()._alternatives(shape, name)
        containers = [kind for kind in kinds if not kind.startswith("Literal") and kind not in _SCALARS.values()]
        if len(containers) > 1 and not shape.name:
            return ["Any"]
        if any(kind.startswith("Literal") and ("True" in kind or "False" in kind) for kind in kinds):
            return ["Any"]
        if any(kind.startswith("Literal") for kind in kinds) and "str" in kinds:
            return [kind for kind in kinds if not kind.startswith("Literal")]
        return kinds

    def _array(self, shape: Shape, name: str) -> str:
        text = super()._array(shape, name)
        return text.removeprefix("Annotated[").removesuffix(", Field(strict=False)]") if "strict" in text else text


def _is_model(shape: Shape) -> bool:
    return shape.types == frozenset({"object"}) and bool(shape.properties) and not shape.alternatives and not shape.name


def _comment(shape: Shape, indent: str) -> str:
    text = " ".join(" ".join(part.split()) for part in (shape.title, shape.description) if part)
    return f"{indent}# {text}\n" if text else ""


def module_stub(spec: DerivationSpec) -> str:
    """Return a class with a method for each transform, all unimplemented."""
    methods = [
        f"    async def {method_of(transform.name)}(self, read: Request.{read_of(transform.name)})"
        " -> AsyncIterator[Document]:\n"
        "        raise NotImplementedError\n"
        "        yield\n"
        for transform in spec.transforms
    ]
    return (
        "from collections.abc import AsyncIterator\n\n"
        f"from {package_of(spec.name)} import Document, IDerivation, Request\n\n\n"
        f"class Derivation(IDerivation):\n"
        f'    """Implementation of the derivation {spec.name}."""\n\n' + "\n".join(methods)
    )
