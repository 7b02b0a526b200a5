"""Loading the code of a derivation in TypeScript: one module, or files that include the module."""

from __future__ import annotations

import os

from connectors.derive_typescript.catalog.config import ImportMap, TypeScriptConfig
from connectors.derive_typescript.catalog.imports import (
    import_map,
    imported_files,
    is_code,
    is_settings,
    is_within,
    named_libraries,
)
from connectors.derive_typescript.catalog.permissions import Permissions
from derive.errors import Issue
from derive.position import Script
from derive.protocol.authoring import CatalogFiles, LocatedValue
from derive.protocol.resource import reason_of, resolve, show


def load_config(at: LocatedValue, files: CatalogFiles) -> TypeScriptConfig | None:
    """Return the configuration below `typescript`, with its files; None if some of them cannot be loaded.

    Args:
        at: value that is valid under `SCHEMA`.
        files: loads the files, and collects their issues.
    """
    fields = dict(at.items())
    listed = list(fields["files"].elements()) if "files" in fields else []
    code = fields.get("module") or next(file for file in listed if is_code(file.value))
    module = files.script(code, "the module", may_be_inline="module" in fields)
    written_in = _written_in(module, files) if module else resolve(files.url, code.value)
    settings = next((file for file in listed if is_settings(file.value)), None)
    names = _names(settings, files, written_in) if settings else named_libraries(files, written_in)
    others = [_listed(file, files) for file in listed if file is not code and file is not settings]
    if module is None or names is None or None in others:
        return None
    return TypeScriptConfig(
        module=module,
        imports=imported_files(files, module, written_in, names, [url for url in others if url]),
        import_map=names,
        settings=resolve(files.url, settings.value) if settings else "",
        permissions=_permissions(fields.get("permissions"), files.url),
    )


def _permissions(at: LocatedValue | None, url: str) -> Permissions:
    if at is None or not at.value:
        return Permissions()
    net, read, env = (tuple(at.value.get(name, ())) for name in ("net", "read", "env"))
    folder = os.path.dirname(url) if os.path.isabs(url) else None
    return Permissions(net, tuple(resolve(url, path) for path in read), env, at.position, folder)


def _written_in(module: Script, files: CatalogFiles) -> str:
    """Return the URL of the file that contains a module: its own, or that of the catalog."""
    shown = module.position.file
    return files.url if shown == show(files.url) else resolve(os.path.join(os.getcwd(), "_"), shown)


def _names(at: LocatedValue, files: CatalogFiles, written_in: str) -> ImportMap | None:
    """Return the import names of the settings; report an issue and return None if they cannot be read."""
    url = resolve(files.url, at.value)
    if not _is_ours(at, url, files):
        return None
    try:
        text = files.text(url)
    except OSError as exc:
        is_missing = isinstance(exc, FileNotFoundError)
        message = f"cannot load the settings {show(url)}: {reason_of(exc)}"
        hint = "'flowctl generate' begins it" if is_missing else None
        files.report(Issue("E003", message, at.position, hint), missing=url if is_missing else "")
        return None
    names = import_map(text, url, written_in)
    if names is None:
        message = f"{show(url)} is not understood: it must be a JSON object whose 'imports' are one"
        files.report(Issue("E018", message, at.position))
    return names


def _listed(at: LocatedValue, files: CatalogFiles) -> str | None:
    """Return the URL of a file to be loaded with the module; report an issue and return None if it cannot be loaded."""
    url = resolve(files.url, at.value)
    if not _is_ours(at, url, files):
        return None
    try:
        files.content(url)
    except OSError as exc:
        files.report(Issue("E003", f"cannot load {show(url)}: {reason_of(exc)}", at.position))
        return None
    return url


def _is_ours(at: LocatedValue, url: str, files: CatalogFiles) -> bool:
    """Return whether a file is in the project's folder, or remote; report an issue if it is not."""
    if not os.path.isabs(url) or is_within(url, files.root):
        return True
    message = f"{at.value} is not in the project's folder, {show(files.root)}"
    files.report(Issue("E535", message, at.position))
    return False
