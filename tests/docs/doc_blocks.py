"""Code blocks of README and docs: where they stand, what they say, and the commands that they give."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_INCLUDED = re.compile(r'^--8<-- "([^"]+)"$', re.M)
_INDENTED = re.compile(r"(?:\A|(?<=\n))\n(?: {4}\S.*\n)+")
_LIST = re.compile(r"^(?: *(?:[-*+]|\d+\.) |\s+\S)")
_INLINE = re.compile(r"`kvloft ([a-z]+(?: [^`\n]*)?)`")


@dataclass(frozen=True)
class Block:
    """One block. An indented one has no language; files that it includes stand in their places."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Step:
    """A command of a block, and the output that is said to follow; None if nothing is said."""

    command: str
    output: str | None = None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        body = re.sub(f"^{match['indent']}", "", match["text"], flags=re.M)
        body = _INCLUDED.sub(lambda included: (ROOT / included[1]).read_text().rstrip(), body)
        found.append(Block(name_of(page), text.count("\n", 0, match.start()) + 1, match["language"], body))
    prose = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _INDENTED.finditer(prose):
        before = prose[: match.start()].rstrip("\n").rpartition("\n")[2]
        if not _LIST.match(before):
            found.append(Block(name_of(page), prose.count("\n", 0, match.start()) + 2, "", match[0]))
    return found


def steps_of(block: Block) -> list[Step]:
    """What a block of a shell has people type: all of it, or in a session what stands behind its prompts."""
    if block.language != "console":
        return [Step(block.text)]
    steps = []
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command = re.match(r"(?:.*\\\n)*.*\n?", part)
        assert command
        steps.append(Step(command[0], part[command.end() :]))
    return steps


def inline_commands(page: Path) -> list[list[str]]:
    """Commands of kvloft that are quoted within sentences, as words. What is optional, in brackets, counts as given."""
    prose = _FENCE.sub("", page.read_text())
    plain = str.maketrans("[]", "  ")
    return [shlex.split(match[1].translate(plain)) for match in _INLINE.finditer(prose)]
