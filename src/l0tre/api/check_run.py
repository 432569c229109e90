"""Check all of a run again by other code: the certificate of every lower bound, and every witness."""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from l0tre.api.certificates import certificate_path
from l0tre.api.resume import network_of
from l0tre.certify.checker.certificate import read_certificate
from l0tre.certify.checker.check import check, compare_graph
from l0tre.certify.checker.witness import check_witness
from l0tre.errors import CertificateError, ConfigError
from l0tre.evaluation.results import ImageBounds
from l0tre.files import write_whole
from l0tre.halting import Halted
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.store import CHECKED, Inputs, read_checked, read_config, read_inputs, read_snapshot

__all__ = ["ImageCheck", "RunCheck", "check_run"]


@dataclass(frozen=True)
class ImageCheck:
    """What checking an image found.

    Attributes:
        index: Position in the user's data.
        lower: Its lower bound.
        reason: Why something does not hold; empty if all does.
        missing: Whether the lower bound has no certificate, so that only the witness was checked.
        parts: Parts of the certificate that were proved again.
        splits: Parts that the checker had to split.
        seconds: How long it took.
    """

    index: int
    lower: int
    reason: str = ""
    missing: bool = False
    parts: int = 0
    splits: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class RunCheck:
    """What checking a run found.

    Attributes:
        images: Those that were checked now.
        before: How many had been checked before and were left out.
        left: How many were neither.
        witnesses: How many witnesses were replayed now.
        seconds: How long it took.
    """

    images: tuple[ImageCheck, ...]
    before: int
    left: int
    witnesses: int
    seconds: float

    @property
    def refused(self) -> tuple[ImageCheck, ...]:
        """Images of which something does not hold."""
        return tuple(image for image in self.images if image.reason)

    @property
    def missing(self) -> tuple[ImageCheck, ...]:
        """Images whose lower bound is above 0 and has no certificate."""
        return tuple(image for image in self.images if image.missing)

    @property
    def valid(self) -> bool:
        """Whether all that was checked holds, and nothing was missing."""
        return not self.refused and not self.missing

    def __repr__(self) -> str:
        done = len(self.images)
        return (
            f"RunCheck({'valid' if self.valid else 'not valid'}: {done} inputs, {len(self.refused)} refused, "
            f"{len(self.missing)} without certificate; {self.before} checked before, {self.left} left)"
        )


def check_run(
    folder: str | Path,
    network: Source | None = None,
    *,
    sample: float = 1.0,
    seed: int = 0,
    again: bool = False,
    device: str = "auto",
    memory_bytes: int = 0,
    time_budget: float | None = None,
    trust_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int, str], None] | None = None,
) -> RunCheck:
    """Check a run that was made with ``certificates``: every lower bound by its certificate, every witness by replay.

    The folder remembers what held, so a check that was stopped goes on where it was; ``l0tre.load_run`` then says of
    which images the lower bound is checked.

    Args:
        folder: The run folder.
        network: The network, as for :func:`l0tre.resume`.
        sample: Share of the images, from 0 to 1, drawn at random.
        seed: Of the sample.
        again: Check also what was checked before.
        device: Where to compute, if ``network`` is not loaded yet.
        memory_bytes: Bytes that one step may take, approximately; 0 for a share of what is free.
        time_budget: Seconds; the image in hand then counts as left, also the first one. ``None`` for no limit.
        trust_run: Import the Python code that the run names, as for :func:`l0tre.resume`.
        stop: Asked before every image and after every step of a proof; a yes ends the check, and the image in hand
            counts as left.
        progress: Called with the images done, the images in all, and what is done now.

    Returns:
        What was found; nothing is raised for what does not hold.

    Raises:
        ConfigError: If ``sample`` is not a share.
        CertificateError: If the network's graph is not its source.
        L0treError: If the folder or the network cannot be used.
    """
    if not 0 < sample <= 1:
        raise ConfigError(f"`sample` is {sample}: give a share above 0 and at most 1, such as 0.05")
    began, folder = time.monotonic(), Path(folder)
    config, inputs, snapshot = read_config(folder), read_inputs(folder), read_snapshot(folder)
    net = network_of(folder, config, tuple(inputs.images.shape[1:]), network, device, trust_run=trust_run)
    images = list(snapshot.images)
    if sample < 1:
        chosen = random.Random(seed).sample(range(len(images)), max(1, round(sample * len(images))))
        images = [images[place] for place in sorted(chosen)]
    if net.exact is not None:  # once for all images
        compare_graph(net, inputs.images, inputs.domain.to(torch.device("cpu")))
    known = dict(read_checked(folder))
    todo = [image for image in images if again or not image.checked]
    before = len(images) - len(todo)
    done: list[ImageCheck] = []
    witnesses = 0

    def over() -> bool:
        return stop() or (time_budget is not None and time.monotonic() - began >= time_budget)

    for image in todo:
        if over():
            break
        what = f"input {image.index}, {image.lower} changed"

        def step(share: float, what: str = what) -> None:
            if over():
                raise Halted
            if progress is not None:
                progress(before + len(done), len(images), f"{what}, {share:.0%}" if share else what)

        try:
            found = _check_image(folder, net, inputs, image, memory_bytes, step)
        except Halted:
            break
        witnesses += image.witness is not None
        done.append(found)
        if found.reason or found.missing:
            known.pop(str(image.index), None)
        else:
            known[str(image.index)] = _entry(image, net)
        _remember(folder, known)
    return RunCheck(tuple(done), before, len(todo) - len(done), witnesses, time.monotonic() - began)


def _check_image(
    folder: Path, network: Network, inputs: Inputs, image: ImageBounds, memory: int, step: Callable[[float], None]
) -> ImageCheck:
    began = time.monotonic()
    step(0.0)
    original = inputs.images[inputs.indices.index(image.index)]
    domain = inputs.domain.to(torch.device("cpu"))
    path = certificate_path(folder, image.index, image.lower)
    missing = image.lower > 0 and not path.is_file()
    parts = splits = 0
    try:
        if image.witness is not None:
            changed = image.witness.apply(original)
            check_witness(network, original, changed, domain, image.label, image.upper)
        if image.lower > 0 and not missing:
            certificate = read_certificate(path)
            if (certificate.radius, certificate.label) != (image.lower, image.label):
                raise CertificateError(
                    f"{path.name} is about {certificate.radius} changes of class {certificate.label}, the run says "
                    f"{image.lower} of class {image.label}"
                )
            result = check(
                certificate,
                network,
                original,
                domain,
                device=network.device,
                memory=memory or default_budget(network.device),
                compare=False,
                progress=lambda done, total: step(done / total),
            )
            parts, splits = result.nodes, result.splits
    except CertificateError as error:
        return ImageCheck(image.index, image.lower, str(error), seconds=time.monotonic() - began)
    return ImageCheck(image.index, image.lower, "", missing, parts, splits, time.monotonic() - began)


def _entry(image: ImageBounds, network: Network) -> dict[str, Any]:
    return {"lower": image.lower, "label": image.label, "fingerprint": network.fingerprint}


def _remember(folder: Path, known: Mapping[str, Any]) -> None:
    write_whole(folder / CHECKED, lambda path: path.write_text(json.dumps(known, indent=1), encoding="utf-8"))
