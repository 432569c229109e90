"""The function that generates tests: generate_tests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l0tre.api.clusters import ClusterChoice, workers_for
from l0tre.api.inputs import Images, check_scale, fitting_threads, load_inputs
from l0tre.api.steps import check_budget
from l0tre.api.suite_files import check_folder, digest, load_state, save_state, write_suite
from l0tre.coverage.measure import measure_ranges
from l0tre.coverage.neurons import Layer, layers_of
from l0tre.coverage.ranges import Ranges
from l0tre.data import Dataset
from l0tre.defaults import MAX_L0, PROOFS
from l0tre.domain import Domain, Groups, Range, make_domain
from l0tre.errors import ConfigError, DataError
from l0tre.halting import Halted
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.scheduling.executor import StopCondition
from l0tre.testgen.found import FAR
from l0tre.testgen.generate import SuiteSettings, SuiteState, begin, generate, make_bench
from l0tre.testgen.suite import Seeds, Suite, decided, make_suite
from l0tre.testgen.units import Desk, UnitRunner, make_unit_runner, ship
from l0tre.threads import using_threads

__all__ = ["CRITERIA", "Progress", "generate_tests"]

CRITERIA = ("neuron", "strong")
PASSES_AFTER = 8  # of an input's neurons, whose time is kept for the suite beside those of seeds and tests
SAVE_SECONDS = 20.0  # between two states that are kept
CHANGEABLE = ("memory_bytes", "baseline")  # settings that may be others when a suite is gone on with
Progress = Callable[[str, float], None]


def generate_tests(
    network: Source,
    seeds: Images,
    *,
    criterion: str = "neuron",
    threshold: float = 0.0,
    layers: Sequence[str] = (),
    ranges: Images | None = None,
    max_l0: int = MAX_L0,
    proofs: int = PROOFS,
    baseline: bool = True,
    unit: Groups | np.ndarray | Tensor = "auto",
    mask: np.ndarray | Tensor | None = None,
    low: Range = 0.0,
    high: Range = 1.0,
    domain: Domain | None = None,
    time_budget: float | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    cluster: ClusterChoice = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Suite:
    """For every neuron that no seed activates, the nearest input that does, or a proof that there is none.

    Args:
        network: What :func:`l0tre.load` gives or takes; it must have a graph.
        seeds: ``[seeds, *shape]`` in the domain, or a data set: what tests are made from.
        criterion: ``neuron`` (a value above ``threshold``) or ``strong`` (a value above the highest one on ``ranges``).
        threshold: In the units of the neurons' values, after the activation.
        layers: Names of layers, such as ``relu2``; all if empty.
        ranges: Training inputs, for ``strong``; kept in ``out`` for measuring coverage later.
        max_l0: Changed groups (pixels, features) of a test, at the most.
        proofs: Changed groups up to which proofs are tried; 0 for none. They end earlier where nothing is proved.
        baseline: Whether as many random changes are tried, for comparison.
        unit: What counts as one change: ``pixel``, ``feature``, ``auto`` (pixels for images), or group numbers.
        mask: True where values may change, see :func:`l0tre.make_domain`.
        low: Smallest value, likewise.
        high: Largest value, likewise.
        domain: Instead of the last four.
        time_budget: Seconds; ``None`` for no limit. The suite is then what was found.
        out: Folder for tests, tables, curves and pictures; the same call goes on with what is there.
        seed: Of all chance.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute, if ``network`` is not loaded yet.
        cluster: Spread the work over workers of Ray: ``local``, ``ray://host:port`` or :class:`l0tre.Cluster`.
        progress: Told what was done, and the coverage so far.
        stop: Asked before every batch; ends early with what there is.

    Returns:
        The suite.

    Raises:
        L0treError: If anything given cannot be used.
    """
    _check(criterion, threshold, max_l0, proofs)
    check_budget(time_budget)
    net, data = load_inputs(network, seeds, None, device)
    if not len(data.images):
        raise DataError("there are no seeds: give at least one input")
    chosen = layers_of(net, layers)
    domain = domain or make_domain(net.input_shape, groups=unit, mask=mask, low=low, high=high)
    check_scale(data, domain)
    domain.check(data.images, data.indices)
    measured = _ranges(net, ranges, layers)
    thresholds, words = _thresholds(criterion, threshold, chosen, measured)
    settings = SuiteSettings(criterion, threshold, max_l0, proofs, baseline, seed, memory_bytes)
    folder = None if out is None else Path(out)
    facts = {**asdict(settings), "layers": [layer.name for layer in chosen], "network": net.fingerprint}
    key = digest({k: v for k, v in facts.items() if k not in CHANGEABLE}, domain, data.images, thresholds)
    flat = data.images.flatten(1)
    looking = time.monotonic()
    goals, state = begin(net, chosen, thresholds, flat)
    each = (time.monotonic() - looking) / len(flat)  # seconds for an input's neurons in float64
    if folder is not None:
        check_folder(folder)
        state = load_state(folder, key, net.device) or state
    ending = StopCondition(stop, time_budget)

    def pulse() -> None:
        # The suite is computed anew from its tests, and decides its seeds: that has to end in time, too.
        last = each * (PASSES_AFTER + len(flat) + len(state.found.inputs))
        if ending.should_stop() or ending.left() < min(last, (time_budget or 0) / 2):
            raise Halted

    saved = time.monotonic()
    bench = make_bench(net, goals, domain, flat, settings, pulse)
    with (
        using_threads(fitting_threads(net)),
        workers_for(
            cluster, ending, UnitRunner(bench, remote=False), make_unit_runner, lambda _: ship(bench)
        ) as executor,
    ):
        desk = Desk(executor, ending, state.found, state.notes)
        for words_now in generate(bench, desk, settings, state):
            if progress is not None:
                progress(words_now, _coverage(state))
            if folder is not None and time.monotonic() - saved > SAVE_SECONDS:
                save_state(folder, state, key)
                saved = time.monotonic()
        if folder is not None:
            save_state(folder, state, key)
        known = Seeds(data.images.cpu(), tuple(data.indices), decided(net, data.images))
        suite = make_suite(net, goals, domain, known, words, settings, state)
    if folder is not None:
        write_suite(folder, suite, domain, measured)
    return suite


def _coverage(state: SuiteState) -> float:
    return float((state.found.distance < FAR).double().mean())


def _check(criterion: str, threshold: float, max_l0: int, proofs: int) -> None:
    if criterion not in CRITERIA:
        raise ConfigError(
            f"tests are generated for the `criterion` {' or '.join(CRITERIA)}, not {criterion!r}; l0tre coverage "
            "measures more"
        )
    if not abs(threshold) < float("inf"):
        raise ConfigError(f"the `threshold` is {threshold}: give a number, for example 0")
    if max_l0 < 1:
        raise ConfigError(f"`max_l0` is {max_l0}: give 1 or more changed groups")
    if proofs < 0:
        raise ConfigError(f"`proofs` is {proofs}: give 0 (none) or more changed groups")


def _ranges(network: Network, inputs: Images | None, layers: Sequence[str]) -> Ranges | None:
    if inputs is None:
        return None
    data: Dataset = load_inputs(network, inputs, None, "auto")[1]
    return measure_ranges(network, data.images, f"inputs of {data.name}", layers)


def _thresholds(criterion: str, threshold: float, layers: Sequence[Layer], ranges: Ranges | None) -> tuple[Tensor, str]:
    """What each neuron must exceed, float64 ``[neurons]`` on the CPU, and that in words."""
    count = sum(layer.size for layer in layers)
    if criterion == "neuron":
        return torch.full((count,), threshold, dtype=torch.float64), f"value above {threshold:g} at its position"
    if ranges is None:
        raise ConfigError("strong needs the ranges of neurons on training data: give `ranges`")
    return ranges.high.double().cpu(), f"value above the neuron's range; {ranges.words}"
