"""What documents say of the source holds: layers, files, links."""

import re
import tomllib
from pathlib import Path

import pytest

import l0tre

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def pictured_layers() -> list[list[list[str]]]:
    """For each text block under "Layers" of the architecture its lines, each the names in its first column."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("\n## Layers\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    return [[re.split(r"\s{2,}", line)[0].split(" | ") for line in block.splitlines()] for block in blocks]


def contracts() -> list[dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = settings["tool"]["importlinter"]["contracts"]
    return [contract for contract in found if contract["type"] == "layers"]


def test_the_picture_shows_the_layers_that_are_kept() -> None:
    kept = [[layer.split(" | ") for layer in contract["layers"]] for contract in contracts()]

    assert pictured_layers() == kept


def test_every_package_is_in_a_layer() -> None:
    source = ROOT / "src" / "l0tre"
    packages = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    drawn = {name for layer in pictured_layers()[0] for name in layer}
    assert packages - {"__init__", "__main__"} == drawn


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_names_of_files_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    known = [f"/{path.relative_to(ROOT)}" for folder in ("src", "tests", "fuzz", "examples", "benchmarks", "docs")
             for path in (ROOT / folder).rglob("*.py")]  # fmt: skip

    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in link]
    dead = [link for link in links if link and not (document.parent / link).exists()]
    files = {name.strip("/") for name in re.findall(r"`([\w./-]+\.py)`", prose) if not name.startswith("file.py")}
    dead += [name for name in sorted(files) if not any(path.endswith(f"/{name}") for path in known)]

    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)

    dead = []
    for target, heading in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", prose):
        if heading not in anchors(document.parent / target if target else document):
            dead.append(f"{target}#{heading}")
    assert dead == []


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_reference_names_everything_public() -> None:
    named = re.findall(r"^::: l0tre\.(\w+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)

    assert sorted(named) == sorted(l0tre.__all__)


def test_the_checker_is_as_long_as_its_document_says() -> None:
    files = (ROOT / "src" / "l0tre" / "certify" / "checker").glob("*.py")
    lines = sum(len(file.read_text().splitlines()) for file in files)
    said = re.search(r"have about ([\d,]+) lines", (ROOT / "docs" / "certificates.md").read_text())

    assert said is not None
    assert abs(lines - int(said[1].replace(",", ""))) <= 50
