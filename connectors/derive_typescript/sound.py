"""Sound modules: a cache of modules without errors, by content, because a check takes Deno seconds.

The digest includes the types of their collections, Deno, and the checking code. Modules that use libraries are not
cached, because another version of a library may be fetched at any time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from connectors.derive_typescript.runtime.command import deno, uses_libraries
from connectors.derive_typescript.runtime.project import digest_of
from derive.protocol.specs import DerivationSpec

_FILE = "flowctl-sound-modules"
_MOST = 1_000
"""Maximum number of cached modules; the latest are kept."""


class SoundModules:
    """The cache of a user.

    Args:
        folder: folder of the cache file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._known = self._read()

    def knows(self, spec: DerivationSpec) -> bool:
        """Return whether the module of a derivation was checked without errors, and is unchanged."""
        return not uses_libraries(spec) and _digest(spec) in self._known

    def add(self, specs: Iterable[DerivationSpec]) -> None:
        """Add modules without errors to the cache, if it can be written."""
        added = [_digest(spec) for spec in specs if not uses_libraries(spec)]
        if not added:
            return
        self._known = list(dict.fromkeys([*self._read(), *added]))[-_MOST:]
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            written = self._file.with_name(f"{_FILE}.{os.getpid()}")
            written.write_text("\n".join(self._known))
            written.replace(self._file)

    def _read(self) -> list[str]:
        with suppress(OSError, UnicodeDecodeError):
            return self._file.read_text().split()
        return []


def _digest(spec: DerivationSpec) -> str:
    """Return a digest of all inputs of a check."""
    return hashlib.sha256(f"{digest_of(spec)} {_lookers()}".encode()).hexdigest()[:32]


@cache
def _lookers() -> str:
    """Return the identity of the checker: Deno, and the code of this connector."""
    files = [Path(deno()), *sorted(Path(__file__).parent.rglob("*.py"))]
    told = [(path.name, stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
    return repr(told)
