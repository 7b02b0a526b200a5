"""The program that installs the environment of `make test`: what uv is given of pip's configuration."""

import runpy

import pytest
from checkout import REPOSITORY

OPTIONS = runpy.run_path(str(REPOSITORY / ".ci" / "install.py"))["options"]


@pytest.mark.parametrize(
    ("configuration", "options"),
    [
        ("", []),
        (":env:.cert='/a.pem'\nglobal.timeout='180'", []),  # changes nothing of what is installed
        ("global.index-url='https://a/simple'", ["--default-index", "https://a/simple"]),
        (
            ":env:.find-links='/a'\nglobal.find-links='/a'\nglobal.extra-index-url='file:///b file:///c'",
            ["--find-links", "/a", "--index", "file:///b", "--index", "file:///c"],
        ),
        ("install.find-links='\\n/a\\n/b'", ["--find-links", "/a", "--find-links", "/b"]),  # one a line
        (":env:.find-links='/a'\nglobal.find-links='/b'", None),  # pip knows which one it heeds
        ("global.trusted-host='a'", None),  # uv has no such setting
        ("global.index-url='https://a'\nglobal.no-index='true'", None),
    ],
)
def test_settings_of_pip_become_options_of_uv(configuration: str, options: list[str] | None) -> None:
    assert OPTIONS(configuration) == options
