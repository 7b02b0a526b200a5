"""Install this project into the environment of this Python, with what its tests need.

uv takes half of the time of pip. It does not read pip's configuration, so it is given the settings that it has, too. If
it lacks a setting, or if it fails, pip installs everything.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

PROJECT = ("-e", ".[dev]")
# Modules are compiled when they are first imported, and most of those that are installed never are.
PIP = (sys.executable, "-m", "pip")
INSTALL = (*PIP, "install", "--no-compile", "--disable-pip-version-check")
# pip takes the latest release of all indexes, too.
UV = (sys.executable, "-m", "uv", "pip", "install", "--index-strategy", "unsafe-best-match")
OPTIONS = {
    "constraint": "--constraint",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "index-url": "--default-index",
}
"""Options of uv by the settings of pip."""
WITHOUT_EFFECT = {"cert", "default-timeout", "disable-pip-version-check", "progress-bar", "root-user-action", "timeout"}
"""Settings that change nothing of what is installed; uv has the system's certificates."""


def options(configuration: str) -> list[str] | None:
    """Return the options of uv for what `pip config list` prints; None if uv lacks a setting, or if two disagree."""
    settings: dict[str, str] = {}
    for line in configuration.splitlines():
        path, _, text = line.partition("=")
        name, value = path.rpartition(".")[2], str(ast.literal_eval(text))
        if name in WITHOUT_EFFECT:
            continue
        if name not in OPTIONS or settings.setdefault(name, value) != value:
            return None
    return [part for name, value in settings.items() for word in value.split() for part in (OPTIONS[name], word)]


def install() -> int:
    """Install everything; return the exit status of the last program."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    known = options(listed.stdout)
    if known is not None and subprocess.run([*INSTALL, "--quiet", "uv"], check=False).returncode == 0:
        command = [*UV, "--python", sys.executable, *known, *PROJECT]
        environment = {"UV_SYSTEM_CERTS": "true", **os.environ}
        done = subprocess.run(command, env=environment, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0:
            return 0
    return subprocess.run([*INSTALL, *PROJECT], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(install())
    except KeyboardInterrupt:
        sys.exit(130)
