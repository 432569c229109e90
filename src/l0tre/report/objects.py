"""The page of any result, for the methods that results have."""

import html
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.api.verify import Verdict
from l0tre.attacks.attacked import Attacked
from l0tre.domain import make_domain
from l0tre.errors import ConfigError, DataError
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.standings import Comparison
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.report.attack import attack_page
from l0tre.report.blocks import Document
from l0tre.report.comparison import comparison_page
from l0tre.report.evaluation import PageSource, evaluation_page
from l0tre.report.maps import saliency_page
from l0tre.report.page import page_html, save_page
from l0tre.report.plots import figure_of
from l0tre.report.suite import suite_page
from l0tre.report.verdict import verdict_page
from l0tre.store import Inputs
from l0tre.testgen.suite import Suite

__all__ = ["drawn", "framed", "page_of", "write"]

HEIGHT = 640  # pixels of a frame in a notebook


def framed(result: object) -> str:
    """A result's page in a frame that can do nothing but run its own script and offer downloads."""
    source = html.escape(page_html(page_of(result)))
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts allow-downloads" width="100%" height="{HEIGHT}" '
        'style="border:0" title="l0tre"></iframe>'
    )


def write(result: object, path: str | Path, images: Any = None) -> Path:
    """Write a result's page to a file."""
    return save_page(page_of(result, None if images is None else _tensor(images)), path)


def drawn(result: object) -> Any:
    """The charts of a result's page as a figure of matplotlib."""
    return figure_of(page_of(result))


@singledispatch
def page_of(result: object, images: Tensor | None = None) -> Document:  # noqa: ARG001  # variants use it
    """The page of a result.

    Args:
        result: An evaluation, an attack, a comparison, a verdict.
        images: What it is about, ``[images, *shape]``.
    """
    raise ConfigError(f"there is no page for a {type(result).__name__}")


@page_of.register
def _(result: Snapshot, images: Tensor | None = None) -> Document:
    if images is None:
        return evaluation_page(PageSource(result))
    most = max((image.index for image in result.images), default=-1)
    if most >= len(images):
        raise DataError(f"the result is about input {most} too, {len(images)} were given: give all that were evaluated")
    low, high = _range(images)
    domain = make_domain(tuple(images.shape[1:]), low=low, high=high)
    return evaluation_page(PageSource(result, Inputs(images, None, tuple(range(len(images))), domain)))


@page_of.register
def _(result: Attacked, images: Tensor | None = None) -> Document:
    if images is not None and images.shape != result.adversarial.shape:
        raise DataError(
            f"the attack was on inputs of shape {tuple(result.adversarial.shape)}, not {tuple(images.shape)}"
        )
    low, high = _range(result.adversarial if images is None else images)
    return attack_page(result, images, low=low, high=high)


@page_of.register
def _(result: Comparison, images: Tensor | None = None) -> Document:  # noqa: ARG001  # it is about several sets of images
    return comparison_page(result, {})


@page_of.register
def _(result: Verdict, images: Tensor | None = None) -> Document:
    low, high = (0.0, 1.0) if images is None else _range(images)
    return verdict_page(result, images, low=low, high=high)


@page_of.register
def _(result: SaliencyMap, images: Tensor | None = None) -> Document:
    image = torch.zeros(result.shape) if images is None else images.reshape(-1, *result.shape)[0]
    low, high = _range(image)
    return saliency_page([result], [image], titles=[result.observed], indices=[0], low=low, high=high)


@page_of.register
def _(result: Suite, images: Tensor | None = None) -> Document:  # noqa: ARG001  # it has its seeds itself
    low, high = _range(result.seeds.images)
    return suite_page(result, low=low, high=high)


def _range(images: Tensor) -> tuple[float, float]:
    """Values drawn black and white: at least 0 and 1."""
    return min(0.0, float(images.min())), max(1.0, float(images.max()))


def _tensor(images: Any) -> Tensor:
    found = images.detach().cpu() if isinstance(images, Tensor) else torch.from_numpy(np.asarray(images))
    return found.to(torch.float32)
