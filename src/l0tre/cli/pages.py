"""Pages of commands that have no run folder: --report FILE.html."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from l0tre.cli.terminal import say
from l0tre.errors import ConfigError, require

if TYPE_CHECKING:
    from torch import Tensor

    from l0tre.cli.setup import Setup
    from l0tre.data import Dataset
    from l0tre.model.network import Network
    from l0tre.report.blocks import Document

__all__ = ["about", "check_page", "source_scores", "write_page"]

BATCH = 32  # inputs whose scores are asked for at once


def check_page(path: Path | None) -> None:
    """Refuse a page that cannot be written, before any work."""
    if path is None:
        return
    require("jinja2", "report")
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm", ".md"):
        raise ConfigError(f"--report {path}: give a file that ends with .html (or .md), such as report.html")


def about(setup: "Setup", chosen: "Dataset") -> list[tuple[str, str]]:
    """Network, data and domain, for a page's account of what was asked."""
    from l0tre.report.asked import question_facts

    network = setup.network
    model = {
        "name": network.name,
        **network.origin,
        "input_shape": network.input_shape,
        "classes": network.classes,
        "fingerprint": network.fingerprint,
    }
    return question_facts(model, chosen.name, len(chosen), setup.domain)


def source_scores(network: "Network", images: "Tensor") -> "Tensor":
    """Scores of inputs by the network's own source, float32 ``[images, classes]``, a batch at a time."""
    import torch

    return torch.cat([network.source_scores(part) for part in images.split(BATCH)])


def write_page(
    path: Path | None,
    make: "Callable[[], Document]",
    *,
    asked: Sequence[tuple[str, str]] = (),
    silent: bool,
) -> None:
    """Write a page, if one is wanted, as HTML or Markdown by its name.

    Args:
        path: The file; ``None`` for none.
        make: Gives the page.
        asked: What was asked besides the command, by name.
        silent: Do not say where it is.
    """
    if path is None:
        return
    from l0tre.files import write_whole
    from l0tre.report.asked import command_facts
    from l0tre.report.markdown import page_markdown
    from l0tre.report.page import save_page

    document = make()
    document = replace(document, blocks=(*document.blocks, command_facts(sys.argv[1:], asked)))
    if path.suffix.lower() == ".md":
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write_text(page_markdown(document), encoding="utf-8"))
    else:
        save_page(document, path)
    if not silent:
        say(f"report: {path}")
