"""Hooks of `make docs`: documents of the repository's root become pages, and links to them lead there."""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.md",
    "examples": "examples.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in ``docs/``."""
    for source, page in PAGES.items():
        path = ROOT / source
        text = _examples(path) if path.is_dir() else path.read_text(encoding="utf-8")
        if page == "licence.md":
            text = f"# Licence\n\n```text\n{text}```\n"
        files.append(File.generated(config, page, content=_from_root(text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links of ``docs/*.md`` out of that folder, to pages of this site."""
    for source, page in PAGES.items():
        markdown = markdown.replace(f"](../{source})", f"]({page})")
    return re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples.md#\1)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Names in docstrings without their roles, which only Sphinx reads."""
    return re.sub(r":(?:func|class|meth):(?=<code>)", "", html)


def _from_root(text: str) -> str:
    """Links of a document in the root: its pages by their names, those of ``docs/`` without the folder."""
    for source, page in PAGES.items():
        text = text.replace(f"]({source})", f"]({page})")
    text = re.sub(r"\]\(examples/(\w+)\.py\)", r"](examples.md#\1)", text)
    return text.replace("](docs/", "](")


def _examples(folder: Path) -> str:
    """All examples as one page."""
    parts = ["# Examples\n\nEach is a program of its own, in the folder `examples/`.\n"]
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        about = ast.get_docstring(ast.parse(source)) or ""
        parts.append(f"## {path.stem}\n\n{about}\n\n```python\n{source}```\n")
    return "\n".join(parts)
