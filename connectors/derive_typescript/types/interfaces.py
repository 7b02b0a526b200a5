"""The interfaces module of a derivation, which its author's module imports."""

from __future__ import annotations

from connectors.derive_typescript.types.declaration import declare
from connectors.derive_typescript.types.literals import member
from connectors.derive_typescript.types.named import camel, type_name
from derive.protocol.authoring import GENERATED
from derive.protocol.specs import DerivationSpec

RESERVED = ("constructor", "flush", "reset", "startCommit")
"""Members of the class with a meaning of their own; no transform's method may have these names."""

_MEMBERS = """\
    constructor(_open: { state: unknown }) {}

    /** Called at the end of each tick in which documents were processed: what it returns is published, too. */
    flush(): Document[] | Promise<Document[]> {
        return [];
    }

    /** Called at the end of a transaction: the state it returns is handed to the constructor of the next one. */
    startCommit(_startCommit: { runtimeCheckpoint: unknown }): State | Promise<State> {
        return {};
    }

    /** Called between catalog tests, to forget everything. */
    reset(): void | Promise<void> {}
""".replace("State", "{ state?: { updated: unknown; mergePatch: boolean } }")


def method_of(transform: str) -> str:
    """Return the name of the method that implements a transform: lower camel case."""
    name = camel(transform)
    return name[:1].lower() + name[1:]


def source_of(transform: str) -> str:
    """Return the name of the type of the documents that a transform reads."""
    return type_name(f"Source{camel(transform)}")


def generate_interfaces(spec: DerivationSpec) -> str:
    """Return the interfaces module of a derivation: its types, and the base class of the derivation's class."""
    taken = {"Document", "IDerivation", *(source_of(transform.name) for transform in spec.transforms)}
    parts = [
        f"// {GENERATED} from the schemas of {spec.name} and of what it reads: changes made here are lost.",
        *declare(spec.collection.write_schema, "Document", taken),
    ]
    methods = [_MEMBERS]
    for transform in spec.transforms:
        source = source_of(transform.name)
        parts += declare(spec.sources[transform.input.source].read_schema, source, taken)
        read = f"{{ doc: {source}; publishedAt: string }}"
        methods.append(
            f"    abstract {member(method_of(transform.name))}(read: {read}): Document[] | Promise<Document[]>;"
        )
    body = "\n".join(methods)
    parts.append(f"export abstract class IDerivation {{\n{body}\n}}")
    return "\n\n".join(parts) + "\n"
