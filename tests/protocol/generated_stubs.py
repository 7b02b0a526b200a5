"""Generates the stubs of the protocols: `.venv/bin/python tests/protocol/generated_stubs.py` writes them again.

protoc has the stubs import one another by bare names; here they do so by the name of their package.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

PROTOCOL = Path(__file__).parents[2] / "derive" / "protocol"
PROTO, STUBS = PROTOCOL / "proto", PROTOCOL / "stubs"


def generate() -> dict[str, str]:
    """Names and texts of the stubs."""
    from grpc_tools import protoc

    files = sorted(path.name for path in PROTO.glob("*.proto"))
    with TemporaryDirectory() as folder:
        options = [f"--proto_path={PROTO}", f"--python_out={folder}", f"--pyi_out={folder}"]
        assert protoc.main(["protoc", *options, *files]) == 0
        texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(Path(folder).iterdir())}
    names = "|".join(name.removesuffix(".proto") for name in files)
    imports = re.compile(rf"^import ((?:{names})_pb2) as", re.MULTILINE)
    return {name: imports.sub(r"from derive.protocol.stubs import \1 as", text) for name, text in texts.items()}


if __name__ == "__main__":
    for name, text in generate().items():
        (STUBS / name).write_text(text, encoding="utf-8")
