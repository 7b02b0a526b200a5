"""The code of a TypeScript derivation, as a catalog names it: one module, or files of which one is the module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from derive.catalog.definitions import CodeDef
from derive.catalog.language.yaml import Located
from derive.catalog.loading.modules import import_map, imported_files, is_code, is_settings, named_libraries
from derive.catalog.loading.project import is_within
from derive.catalog.loading.resources import Resources, why
from derive.errors import Issue
from derive.position import Script
from derive.protocol.specs import ImportMap


class ModuleLoader:
    """Loads modules with what they import.

    Args:
        resources: loads files.
        issues: takes what is wrong.
        missing: takes URLs of files that do not exist and can be generated.
        root: the project's folder.
    """

    def __init__(self, resources: Resources, issues: list[Issue], missing: set[str], root: str) -> None:
        self._resources = resources
        self._issues = issues
        self._missing = missing
        self._root = root

    def load(
        self,
        settings: Mapping[str, Located],
        files: Sequence[Located],
        url: str,
        load_script: Callable[[Located], Script | None],
    ) -> CodeDef | None:
        """The code of a derivation; None (and an issue) if it has none.

        Args:
            settings: what is written below `typescript`.
            files: what of its `files` can be loaded.
            url: of the catalog's file.
            load_script: loads the module.
        """
        at = settings.get("module") or next((each for each in files if is_code(each.value)), None)
        if at is None:
            return None  # its fault has been told
        module = load_script(at)
        written_in = self._written_in(module, url) if module else Resources.resolve(url, at.value)
        named = next((each for each in files if is_settings(each.value)), None)
        names = self._names(named, url, written_in) if named else named_libraries(self._resources, written_in)
        others = [self._listed(each, url) for each in files if each.path not in (at.path, named and named.path)]
        if module is None or names is None or None in others:
            return None
        listed = [each for each in others if each]
        imports = imported_files(self._resources, module, written_in, self._root, names, listed)
        return CodeDef(module, imports, names, Resources.resolve(url, named.value) if named else "")

    @staticmethod
    def _written_in(module: Script, url: str) -> str:
        """The URL of the file a module is written in: its own, or that of the catalog."""
        shown = module.position.file
        return url if shown == Resources.show(url) else Resources.resolve(os.path.join(os.getcwd(), "_"), shown)

    def _names(self, at: Located, base: str, written_in: str) -> ImportMap | None:
        """The names that settings give to what is imported; None (and an issue) if there is no telling."""
        url = Resources.resolve(base, at.value)
        if not self._is_ours(at, url):
            return None
        try:
            text = self._resources.text(url)
        except OSError as exc:
            hint = None
            if isinstance(exc, FileNotFoundError):
                self._missing.add(url)
                hint = "'flowctl generate' begins it"
            message = f"cannot load the settings {Resources.show(url)}: {why(exc)}"
            self._issues.append(Issue("E003", message, at.position, hint))
            return None
        names = import_map(text, url, written_in)
        if names is None:
            message = f"{Resources.show(url)} is not understood: it must be a JSON object whose 'imports' are one"
            self._issues.append(Issue("E018", message, at.position))
        return names

    def _listed(self, at: Located, base: str) -> str | None:
        """The URL of a file that is to travel with the module; None (and an issue) if it may not, or is not there."""
        url = Resources.resolve(base, at.value)
        if not self._is_ours(at, url):
            return None
        try:
            self._resources.content(url)
        except OSError as exc:
            self._issues.append(Issue("E003", f"cannot load {Resources.show(url)}: {why(exc)}", at.position))
            return None
        return url

    def _is_ours(self, at: Located, url: str) -> bool:
        """Whether a file is the project's, or not of this machine; an issue if it is not."""
        if not os.path.isabs(url) or is_within(url, self._root):
            return True
        message = f"{at.value} is not in the project's folder, {Resources.show(self._root)}"
        self._issues.append(Issue("E535", message, at.position))
        return False
