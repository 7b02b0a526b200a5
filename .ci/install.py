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
INSTALL_UV = (*INSTALL, "--quiet", "--only-binary", "uv", "uv")
# pip takes the latest release of all indexes, too.
UV = (sys.executable, "-m", "uv", "pip", "install", "--index-strategy", "unsafe-best-match")
VARIABLES = {
    "constraint": ("UV_CONSTRAINT", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
}
"""Variables of uv by the settings of pip, with what separates values; a command would show passwords in addresses."""
WITHOUT_EFFECT = {"cert", "default-timeout", "disable-pip-version-check", "progress-bar", "root-user-action", "timeout"}
"""Settings that change nothing of what is installed; uv has the system's certificates."""


def variables(configuration: str) -> dict[str, str] | None:
    """Return the variables of uv for what `pip config list` prints; None if uv lacks a setting, or if two disagree."""
    settings: dict[str, str] = {}
    for line in configuration.splitlines():
        path, _, text = line.partition("=")
        name, value = path.rpartition(".")[2], str(ast.literal_eval(text))
        if name in WITHOUT_EFFECT:
            continue
        if name not in VARIABLES or settings.setdefault(name, value) != value:
            return None
    named = ((VARIABLES[name], value.split()) for name, value in settings.items())
    return {variable: separator.join(words) for (variable, separator), words in named}


def install() -> int:
    """Install everything; return the exit status of the last program."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    known = variables(listed.stdout)
    if known is not None and subprocess.run(INSTALL_UV, check=False).returncode == 0:
        command = [*UV, "--python", sys.executable, *PROJECT]
        environment = {"UV_SYSTEM_CERTS": "true", **known, **os.environ}
        done = subprocess.run(command, env=environment, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0:
            return 0
    return subprocess.run([*INSTALL, *PROJECT], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(install())
    except KeyboardInterrupt:
        sys.exit(130)
