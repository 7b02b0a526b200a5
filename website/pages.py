"""Write the pages of the site into build/docs: those of docs/, the README as home page, and the generated reference.

The pages of docs/ are written for a reader of the repository. A block's file name becomes its title, and a link to a
file that is no page becomes the path of the file.
"""

from __future__ import annotations

import re
import shutil
from pathlib import PurePosixPath
from posixpath import normpath

from website.reference import REPOSITORY, reference_pages

PAGES = REPOSITORY / "build" / "docs"

_FENCE = re.compile(r"^```(\w+) ([\w./-]+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:)[^)#\s]+)(#[^)]*)?\)")


def pages() -> dict[str, str]:
    """Return the text of each page of the site, by its path."""
    sources = {"README.md": "index.md"}
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        sources[path.relative_to(REPOSITORY).as_posix()] = path.relative_to(REPOSITORY / "docs").as_posix()
    return {page: converted(source, sources) for source, page in sources.items()} | reference_pages()


def converted(source: str, sources: dict[str, str]) -> str:
    """Return a file of the repository as a page.

    Args:
        source: path of the file in the repository.
        sources: path of each page in the site, by its path in the repository.
    """
    text = (REPOSITORY / source).read_text(encoding="utf-8")
    parts: list[str] = []
    end = 0
    for block in _BLOCK.finditer(text):
        parts += (_linked(text[end : block.start()], source, sources), _FENCE.sub(r'```\1 title="\2"', block[0]))
        end = block.end()
    return "".join([*parts, _linked(text[end:], source, sources)])


def _linked(text: str, source: str, sources: dict[str, str]) -> str:
    """Return prose whose links lead to pages of the site."""
    at = PurePosixPath(sources[source]).parent

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = normpath((PurePosixPath(source).parent / target).as_posix())
        if path in sources:
            return f"[{words}]({_relative(sources[path], at)}{anchor})"
        return f"`{path}`" if words in path else f"{words} (`{path}`)"

    return _LINK.sub(link, text)


def _relative(page: str, folder: PurePosixPath) -> str:
    """Return the path of a page as seen from a folder."""
    return "../" * len(folder.parts) + page


def write_pages() -> None:
    """Write all pages, in place of those of an earlier call."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, text in pages().items():
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
