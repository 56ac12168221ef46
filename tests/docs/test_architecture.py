"""The diagram of the architecture: the modules that there are, in layers that their imports keep."""

import ast
import re
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/kvloft"
DIAGRAM = ROOT / "docs/architecture.svg"


def rows() -> dict[str, int]:
    """Where each module stands: 0 at the bottom."""
    texts = [text for text in xml.parse(DIAGRAM).iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "module"]
    heights = sorted({int(text.attrib["y"]) for text in texts}, reverse=True)
    found = {text.text or "": heights.index(int(text.attrib["y"])) for text in texts}
    assert len(found) == len(texts), "a module is drawn twice"
    return found


def modules() -> set[str]:
    files = {path.stem for path in SOURCE.iterdir() if path.suffix in (".py", ".pyi")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return (files | packages) - {"__init__", "__main__"}


def imports(path: Path) -> set[str]:
    """kvloft's modules that a file imports, those imported late included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"kvloft.{alias.name}" for alias in node.names} if node.module == "kvloft" else {node.module or ""}
    return {name.split(".")[1] for name in found if name.startswith("kvloft.")}


def test_every_module_is_drawn_and_nothing_else():
    assert rows().keys() == modules()


def test_modules_import_only_from_rows_below():
    drawn = rows()
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in (imports(path) & drawn.keys()) - {own} if own in drawn else ():
            assert drawn[other] < drawn[own], f"{path.relative_to(SOURCE)} imports {other}: draw {own} above it"


def test_boxes_fit_into_the_picture():
    root = xml.parse(DIAGRAM).getroot()
    width = float(root.attrib["viewBox"].split()[2])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
    assert re.fullmatch(r"0 0 \d+ \d+", root.attrib["viewBox"])
