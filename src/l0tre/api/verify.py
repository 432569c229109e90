"""One question about one input: can changing at most so many groups change the decision? And proofs of the answer."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from l0tre.api.certificates import TOO_LARGE, certificate_of, refuse_uncertified
from l0tre.api.inputs import Image, check_scale, describe_data, fitting_threads, load_one, usual_domain
from l0tre.api.sinks import Sink, told
from l0tre.certify.checker.certificate import write_certificate
from l0tre.data import Dataset
from l0tre.domain import Domain
from l0tre.errors import CertificateError, ConfigError, require
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import GuaranteeWish, Problem, Settings, make_problem, spacing, start
from l0tre.evaluation.results import Guarantee, ImageBounds, Snapshot, Witness, make_witness
from l0tre.grid import Colours, GridKind
from l0tre.halting import Clock, Halted, felt
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.shown import Shown
from l0tre.threads import using_threads, with_threads
from l0tre.tuning import DEFAULT_TUNING, Tuning

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Verdict", "verify", "violated_as_it_is"]


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The answer to: can changing at most ``radius`` groups change the decision?

    Attributes:
        answer: ``safe`` (no, in the sense of ``guarantee``), ``unsafe`` (yes, see ``witness``) or ``unknown``.
        radius: The number of groups asked about.
        lower: Proved so far; -1 where the input as it is violates what was asked.
        upper: Shown so far.
        guarantee: What ``lower`` holds for.
        arithmetic: Soundness of the proof in floating point, in words.
        witness: The adversarial input, for ``unsafe``.
        reason: Why the answer is ``unknown``; empty otherwise.
        timed_out: Whether the time budget ended the search.
        share: Part of the sets of ``lower + 1`` groups that is proved safe; 1 if the answer is ``safe``.
        unit: What a group is called.
        seconds: Time spent.
        queries: Forward passes spent, or nodes bounded.
    """

    answer: Literal["safe", "unsafe", "unknown"]
    radius: int
    lower: int
    upper: int
    guarantee: Guarantee
    arithmetic: str
    witness: Witness | None
    reason: str
    timed_out: bool
    share: float
    unit: str
    seconds: float
    queries: int

    def __repr__(self) -> str:
        what = f"at most {self.radius} {self.unit}{'' if self.radius == 1 else 's'}"
        return f"Verdict({self.answer}: {what}; lower {self.lower}, upper {self.upper}, {self.guarantee})"

    def to_dataframe(self) -> "pd.DataFrame":
        """The answer as a table of one row.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        row = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "witness"}
        becomes = None if self.witness is None else self.witness.label
        return require("pandas", "tables").DataFrame([{**row, "becomes": becomes}])


def verify(
    network: Source,
    image: Image,
    label: int | None = None,
    *,
    radius: int,
    guarantee: GuaranteeWish = "auto",
    epsilon: float | None = None,
    points: int | None = None,
    grid: GridKind = "uniform",
    colours: Colours = "grid",
    domain: Domain | None = None,
    attack_queries: int = 0,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    certificate: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
    sinks: Sequence[Sink | Callable[[Snapshot], object]] = (),
    tuning: Tuning = DEFAULT_TUNING,
) -> Verdict:
    """Decide whether one input keeps its decision when at most ``radius`` groups change.

    Args:
        network: As for :func:`l0tre.evaluate`.
        image: One input of the network's shape, a batch of one (``[1, *shape]``), or a data set of one.
        label: Its label; default the network's decision.
        radius: Number of groups that may change.
        guarantee: As for :func:`l0tre.evaluate`, likewise all that follow up to ``device``.
        epsilon: Largest spacing of the grid, in the domain's units; default 0.25 where ranges are at most 1 wide.
        points: Grid points of each value instead, whatever its range; default 5 where ranges are wider.
        grid: Kind of grid.
        colours: Values of a pixel with several channels.
        domain: What may change.
        attack_queries: Forward and backward passes of an attack before the proof, which looks for witnesses itself.
        seed: Of the attack.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute, if ``network`` is not loaded yet.
        time_budget: Seconds; the answer is ``unknown`` after them.
        stop: Asked in every step; a yes ends the work after that step.
        certificate: File for the proof, written if the answer is ``safe``; see :func:`l0tre.check`.
        about: More entries for the certificate's description.
        tell: Takes sentences such as what a long level will cost; default a warning in the log.
        progress: As for :func:`l0tre.evaluate`, likewise all that follow.
        sinks: Who is told how far the proof is.
        tuning: How much is done at a time.

    Returns:
        The verdict.

    Raises:
        CertificateError: If the answer is safe, but its proof is too large for a certificate.
        ConfigError: If ``radius`` is below 1 or above the number of groups, or a certificate is wanted of a proof that
            is not certified.
        DataError: If there is not one image, or the network misclassifies it unchanged.
    """
    if radius < 1:
        raise ConfigError(f"`radius` is {radius}: give 1 or more")
    net, data = load_one(network, image, label, device, domain)
    domain = domain or usual_domain(net, data)
    check_scale(data, domain)
    if radius > domain.groups:
        raise ConfigError(
            f"`radius` is {radius}, but only {domain.groups} {domain.unit}s may change: give at most {domain.groups}"
        )
    began = time.monotonic()

    def out_of_time() -> bool:
        return time_budget is not None and time.monotonic() - began >= time_budget

    pulse = Clock(lambda: stop() or out_of_time(), tuning.grace_seconds).pulse
    threads = fitting_threads(net)
    try:
        with felt(pulse), using_threads(threads):
            problem = make_problem(
                net,
                data.images,
                data.labels,
                indices=data.indices,
                domain=domain,
                settings=Settings(
                    max_t=radius,
                    **spacing(domain, epsilon, points),
                    grid=grid,
                    colours=colours,
                    memory_bytes=memory_bytes,
                    seed=seed,
                    guarantee=guarantee,
                    attack_queries=attack_queries,
                ),
                extra_config=describe_data(data),
                tuning=tuning,
                pulse=pulse,
            )
    except Halted:
        return _nothing_known(domain, radius, guarantee, time.monotonic() - began, out_of_time())
    if certificate is not None:
        refuse_uncertified(problem)
        _check_writable(Path(certificate))
    proved: dict[int, object] = {}
    keep = None if certificate is None else lambda t, _, closed: proved.update({t: closed})
    left = None if time_budget is None else max(0.0, time_budget - (time.monotonic() - began))
    steps = drive(problem, start(problem), time_budget=left, stop=stop, on_evidence=keep, tell=tell)
    with closing(told(with_threads(steps, threads), sinks, progress)) as snapshots:
        for snapshot in snapshots:
            bounds = snapshot.images[0]
            if bounds.lower >= radius or bounds.upper <= radius:
                break
    verdict = _verdict(problem, radius, snapshot, bounds, out_of_time())
    if certificate is not None and verdict.answer == "safe":
        remarks = {"seconds": round(verdict.seconds, 3), **(about or {})}
        made = certificate_of(problem, 0, radius, proved.get(radius), remarks)
        if made is None:
            raise CertificateError(f"the answer is safe, but no certificate was written: {TOO_LARGE}")
        write_certificate(certificate, made)
    return verdict


def violated_as_it_is(network: Network, data: Dataset, domain: Domain, radius: int) -> Verdict | None:
    """The verdict on a property whose input has another decision without any change, which :func:`verify` refuses.

    Args:
        network: The classifier.
        data: One input and the label that the property wants.
        domain: What may change.
        radius: The number of groups asked about.

    Returns:
        ``unsafe``, with the input itself as the witness; ``None`` if the network gives it the label. Another class with
        the same score violates, too.
    """
    assert data.labels is not None
    began, label = time.monotonic(), int(data.labels[0])
    scores = network.replay(data.images[0])
    others = scores.clone()
    others[label] = -torch.inf
    margin = float(scores[label] - others.max())
    if not margin <= 0:
        return None
    original = data.images[:1].flatten(1)
    witness = make_witness(original[0], original[0], (), int(others.argmax()), margin, 0)
    seconds = time.monotonic() - began
    return Verdict(
        answer="unsafe",
        radius=radius,
        lower=-1,
        upper=0,
        guarantee="certified",
        arithmetic="nothing had to be proved",
        witness=witness,
        reason="",
        timed_out=False,
        share=0.0,
        unit=domain.unit,
        seconds=seconds,
        queries=1,
    )


def _nothing_known(domain: Domain, radius: int, wish: GuaranteeWish, seconds: float, out_of_time: bool) -> Verdict:
    """The verdict where the work ended before the model was compared with its graph: the bounds that always hold."""
    what = "the time is over" if out_of_time else "it was stopped"
    return Verdict(
        answer="unknown",
        radius=radius,
        lower=0,
        upper=domain.groups + 1,
        guarantee="certified" if wish == "auto" else wish,
        arithmetic="nothing was computed",
        witness=None,
        reason=f"{what} before the network was confirmed and had classified the input",
        timed_out=out_of_time,
        share=0.0,
        unit=domain.unit,
        seconds=seconds,
        queries=0,
    )


def _verdict(problem: Problem, radius: int, last: Snapshot, bounds: ImageBounds, out_of_time: bool) -> Verdict:
    answer: Literal["safe", "unsafe", "unknown"] = "unknown"
    reason = ""
    if bounds.upper <= radius:
        answer = "unsafe"
    elif bounds.lower >= radius:
        answer = "safe"
    elif bounds.blocked and bounds.guarantee == "lipschitz":
        reason = f"the grid is too coarse for the Lipschitz bound at t = {bounds.blocked}: give a smaller epsilon"
    elif bounds.blocked:
        reason = f"a tie between two classes was met with {bounds.blocked} changed {last.unit}s"
    else:
        what = "the time is over" if out_of_time else "it was stopped"
        reason = f"{what} at level t = {last.t} of {radius}, {_percent(last.level_share)} of its sets done"
    return Verdict(
        answer,
        radius,
        bounds.lower,
        bounds.upper,
        bounds.guarantee,
        problem.config["guarantee"]["arithmetic"],
        bounds.witness if answer == "unsafe" else None,
        reason,
        answer == "unknown" and out_of_time,
        1.0 if answer == "safe" else last.level_share,
        last.unit,
        last.seconds,
        last.queries,
    )


def _percent(share: float) -> str:
    """A share that is not rounded up to all, nor down to nothing."""
    return f"{min(share, 0.9999):.2%}" if share >= 1e-4 else f"{share:.1e}" if share else "none"


def _check_writable(path: Path) -> None:
    """Refuse a place where no file can be written before the proof, which may take hours, not after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"the certificate {path} cannot be written: give a file in a folder that exists")
