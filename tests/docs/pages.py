"""The documentation as data: its pages, their blocks of code, links and named files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.source import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in page_blocks(page) if block.language in languages]


def page_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.S | re.M):
        yield Block(page, text[: match.start()].count("\n") + 1, match[2], match[3])


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Return the commands of the shell blocks, split into words, without comments and leading variables."""
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).split()
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield block, words


def links(page: Path) -> list[str]:
    """Return the links of a page inside the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [target for target in found if not target.startswith(("http", "mailto:"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and MkDocs generate them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def named_files(page: Path) -> set[str]:
    """Return the files and folders of the repository that occur in backticks."""
    pattern = r"`((?:workflows|tasks|infra|images|tests|docs)/[\w./-]*[\w/])(?::\w+)?`"
    return set(re.findall(pattern, page.read_text()))
