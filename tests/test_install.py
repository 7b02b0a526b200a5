"""The program that installs the environment of `make test`: what uv is given of pip's configuration."""

import runpy

import pytest
from checkout import REPOSITORY

VARIABLES = runpy.run_path(str(REPOSITORY / ".ci" / "install.py"))["variables"]


@pytest.mark.parametrize(
    ("configuration", "variables"),
    [
        ("", {}),
        (":env:.cert='/a.pem'\nglobal.timeout='180'", {}),  # changes nothing of what is installed
        ("global.index-url='https://a/simple'", {"UV_DEFAULT_INDEX": "https://a/simple"}),
        (
            ":env:.find-links='/a'\nglobal.find-links='/a'\nglobal.extra-index-url='file:///b file:///c'",
            {"UV_FIND_LINKS": "/a", "UV_INDEX": "file:///b file:///c"},
        ),
        ("install.find-links='\\n/a\\n/b'", {"UV_FIND_LINKS": "/a,/b"}),  # one a line
        (":env:.find-links='/a'\nglobal.find-links='/b'", None),  # pip knows which one it heeds
        ("global.trusted-host='a'", None),  # uv has no such setting
        ("global.index-url='https://a'\nglobal.no-index='true'", None),
    ],
)
def test_settings_of_pip_become_variables_of_uv(configuration: str, variables: dict[str, str] | None) -> None:
    assert VARIABLES(configuration) == variables
