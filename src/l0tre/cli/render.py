"""Results as text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table
from torch import Tensor

from l0tre.api.check_run import RunCheck
from l0tre.api.verify import Verdict
from l0tre.certify.checker.check import CheckResult
from l0tre.cli.flags import in_flags
from l0tre.cli.small_charts import small_charts
from l0tre.cli.terminal import literal, say, screen
from l0tre.domain import Domain
from l0tre.evaluation.accuracy import classified, counts, doubt
from l0tre.evaluation.changes import changes
from l0tre.evaluation.forecast import duration
from l0tre.evaluation.proof_costs import ProofCost
from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.evaluation.scope import scope
from l0tre.exhaustive.describe import Description
from l0tre.limits import peak_host_bytes
from l0tre.model.network import Network
from l0tre.names import Names, names_of

__all__ = [
    "memory_dict",
    "print_snapshot",
    "show_check",
    "show_classified",
    "show_costs",
    "show_description",
    "show_proof_costs",
    "show_run_check",
    "show_snapshot",
    "show_verdict",
]

ROWS = 25  # images listed on a terminal; files have them all


def memory_dict(budget: int) -> dict[str, dict[str, int | None]]:
    """For JSON, in bytes: what batches and tables may take, and the most that the whole process held."""
    return {"memory": {"budget": budget, "peak": peak_host_bytes()}}


def print_snapshot(
    result: Snapshot, *, quiet: bool, as_json: bool, every: bool = False, searched: bool = False
) -> None:
    """Print a result as JSON, as tables, or not at all.

    Args:
        result: What to print.
        quiet: Print no tables.
        as_json: Print JSON and nothing else.
        every: List all images, not only the first ones.
        searched: Whether this process computed it; the JSON then says what memory that took.
    """
    if as_json:
        memory = memory_dict(result.config["settings"]["memory_bytes"]) if searched else {}
        say(json.dumps({**result.to_dict(), **memory}, indent=1))
    elif not quiet:
        show_snapshot(result, screen(), every=every)


def show_snapshot(result: Snapshot, console: Console, *, every: bool = False) -> None:
    """Print the global bounds and a table of images.

    Args:
        result: What to show.
        console: Where to.
        every: List all images, not only the first ones.
    """
    unit, config = literal(result.unit), result.config
    settings = config["settings"]
    names, inputs = names_of(config)
    # No lines and little padding: a billion queries and a day of seconds fit 80 columns.
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in (result.noun, "label", "lower", "upper", "state", "becomes", "seconds", "queries"):
        table.add_column(name, justify="left" if name == "state" else "right")
    shown = result.images if every else result.images[:ROWS]
    for image in shown:
        witness = image.witness
        table.add_row(
            literal(_named(image.index, inputs)),
            literal(names.label(image.label)),
            "-" if image.guarantee == "sampled" else str(image.lower),
            str(image.upper) if witness else f">{image.groups}" if image.lower == image.groups else "none yet",
            _state(image),
            literal(names.label(witness.label)) if witness else "-",
            f"{image.seconds:.1f}",
            f"{image.queries:,}",
        )
    console.print(table)
    if len(shown) < len(result.images):
        console.print(f"... and {len(result.images) - len(shown)} more (of {len(result.images)}; --all lists them)")
    for left_out in result.excluded if every else result.excluded[:5]:
        console.print(
            f"left out: {result.noun} {literal(_named(left_out.index, inputs))}, {literal(left_out.reason_in(names))}"
        )
    if not every and len(result.excluded) > 5:
        console.print(f"left out: {len(result.excluded) - 5} more {result.noun}s")
    total = len(result.images)
    console.print(
        f"\n[bold]{literal(config['model']['name'])}[/bold] on {_count(total, result.noun)} of "
        f"{literal(config['data']['name'])} ({len(result.excluded)} left out), bounds in {unit}s:",
        soft_wrap=True,  # paths stay whole, for copying
    )
    if reading := config["model"].get("reading"):
        console.print(f"  network: {literal(reading)}", soft_wrap=True)
    show_classified(*counts(result), console, "  ")
    sampled = all(image.guarantee == "sampled" for image in result.images)
    if sampled:
        console.print("  lower bound  none    a sample claims none")
    else:
        middle = median(image.lower for image in result.images)
        console.print(f"  lower bound  {result.lower:.3f}   so many {unit}s can change safely; median {middle:g}")
    console.print(f"               guarantee: {_guarantee(result, settings)}", soft_wrap=True)
    if checked := sum(image.checked for image in result.images):
        console.print(f"               checked by other code: {checked} of {_count(total, result.noun)}")
    if note := config.get("guarantee", {}).get("note"):
        console.print(f"               why not certified: {literal(note)}", soft_wrap=True)
    most = result.images[0].groups + 1
    if result.without_witness == total:
        console.print(f"  upper bound  none    no adversarial input yet; each counts as {most}")
    else:
        middle = median(image.upper for image in result.images)
        console.print(f"  upper bound  {result.upper:.3f}   shown by stored adversarial inputs; median {middle:g}")
    if 0 < result.without_witness < total:
        missing = _count(result.without_witness, result.noun)
        console.print(f"               no adversarial input yet for {missing}, counted as {most}")
        known = [image.upper for image in result.images if image.witness is not None]
        console.print(f"               over the other {len(known)}: {fmean(known):.3f}, median {median(known):g}")
    if not sampled:
        console.print(f"  estimate     {result.estimate:.3f} ± {result.uncertainty:.3f}   (the paper's U_c and U_r)")
    grid = any(image.guarantee == "grid" for image in result.images)
    meaning = "smallest on the grid" if grid else "no smaller adversarial input exists"
    console.print(f"  converged    {result.converged} of {total} ({result.converged / total:.1%})   {meaning}")
    end = "complete" if result.finished else "stopped before the end"
    if not result.finished and result.lower == 0 and all(i.guarantee == "certified" for i in result.images):
        console.print(
            "               nothing is certified yet: give it more time, or --guarantee grid (faster, weaker)"
        )
    for line in small_charts(result):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"  search       {end}; {result.seconds:.1f} s, {result.queries:,} queries")


def show_classified(correct: int, total: int, labelled: bool, console: Console, indent: str = "") -> None:
    """Print how many inputs the network classifies correctly, and a warning if they are few."""
    console.print(f"{indent}{classified(correct, total, labelled=labelled)}", markup=False)
    if labelled and (reason := doubt(correct, total)):
        console.print(f"{indent}[bold red]warning[/bold red]: {literal(in_flags(reason))}", soft_wrap=True)


def _named(index: int, inputs: Mapping[int, str]) -> str:
    """An input by its position and, if it has one, its name."""
    return f"{index} {inputs[index]}" if index in inputs else str(index)


def _count(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def _guarantee(result: Snapshot, settings: dict[str, object]) -> str:
    kinds = sorted({image.guarantee for image in result.images})
    arithmetic = result.config.get("guarantee", {}).get("arithmetic", "")
    grid = "the published code's grid" if settings["grid"] == "paper" else f"grid of spacing <= {settings['epsilon']}"
    if points := settings.get("points"):
        grid = f"{points} values from the smallest to the largest of each range"
    colours = ", corner colours only" if settings["colours"] == "corners" else ""
    if kinds == ["sampled"]:
        return "sampled (nothing is proved)"
    if kinds in (["certified"], ["lipschitz"]):
        return f"{kinds[0]} ({scope(result.images[0].guarantee, arithmetic)})"
    return f"{', '.join(kinds)} ({grid}{colours}; not between its points)"


def _state(image: ImageBounds) -> str:
    state = _search_state(image)
    return f"{state}, checked" if image.checked else state


def _search_state(image: ImageBounds) -> str:
    if image.converged:
        return "[green]converged[/green]"
    if image.guarantee == "sampled":
        return "sampled" if image.level else "to do"
    if image.blocked and image.guarantee == "lipschitz":
        return f"open at t = {image.blocked}"
    if image.blocked:
        return f"tie at t = {image.blocked}"
    return f"t = {image.level} done"


def show_verdict(verdict: Verdict, original: Tensor, names: Names, console: Console) -> None:
    """Print a verdict on an input, with names where there are any."""
    colour = {"safe": "green", "unsafe": "red", "unknown": "yellow"}[verdict.answer]
    console.print(f"[bold {colour}]{verdict.answer}[/bold {colour}]")
    unit, radius = verdict.unit, verdict.radius
    if verdict.answer == "safe":
        grid = verdict.guarantee == "grid"
        about = "nothing is claimed between grid points" if grid else scope(verdict.guarantee, verdict.arithmetic)
        kept = f"every change of at most {_count(radius, unit)} keeps the decision"
        console.print(f"{kept} (guarantee: {verdict.guarantee}; {about})")
        console.print(f"holds for: {verdict.arithmetic}")
    elif verdict.witness is not None and not verdict.witness.distance:
        other, margin = literal(names.label(verdict.witness.label)), verdict.witness.margin
        console.print(f"the middle of the box violates the property as it is: class {other} (margin {margin:.4g})")
    elif verdict.witness is not None:
        witness = verdict.witness
        console.print(
            f"changing {_count(witness.distance, unit)} makes it class {literal(names.label(witness.label))} "
            f"(margin {witness.margin:.4g}):",
        )
        for change in changes(witness, original, names):
            console.print(f"  {literal(change)}", soft_wrap=True)
    else:
        console.print(f"reason: {literal(verdict.reason)}; bounds so far: lower {verdict.lower}, upper {verdict.upper}")
    console.print(f"{verdict.seconds:.2f} s, {verdict.queries:,} queries")


def show_check(result: CheckResult, unit: str, index: int, console: Console) -> None:
    """Print what checking a certificate found."""
    console.print("[bold green]valid[/bold green]")
    console.print(
        f"input {index} stays class {result.label} for every change of at most {_count(result.radius, unit)} "
        f"(guarantee: certified; all real values of the domain)"
    )
    console.print(
        f"{_count(result.nodes, 'part')} cover every set of {result.radius}, {result.boxes} of them boxes of values; "
        f"each was bounded again (smallest margin {result.margin:.4g}; {result.splits} split further)"
    )
    console.print(f"{result.seconds:.2f} s")


def show_run_check(result: RunCheck, folder: Path, unit: str, console: Console) -> None:
    """Print what checking a run found."""
    if not result.valid:
        console.print("[bold red]not valid[/bold red]")
    elif not result.images and not result.before:
        why = "nothing was checked: give more time" if result.left else "nothing to check: the run has no bounds"
        console.print(why)
    else:
        console.print(f"[bold green]valid[/bold green]{' so far' if result.left else ''}")
    bounds = [image for image in result.images if image.lower and not image.reason and not image.missing]
    parts = sum(image.parts for image in bounds)
    console.print(
        f"lower bounds proved again: {len(bounds)} ({parts:,} parts, {sum(image.splits for image in bounds):,} split "
        f"further); witnesses replayed: {result.witnesses}"
    )
    for image in result.refused:
        console.print(f"  input {image.index}: {literal(image.reason)}", soft_wrap=True)
    for image in result.missing:
        console.print(f"  input {image.index}: no certificate for its lower bound of {_count(image.lower, unit)}")
    if result.missing:
        console.print("  make a run whose proofs are kept: l0tre evaluate ... --certificates --out FOLDER")
    if result.before:
        console.print(f"checked before: {result.before} (--again checks them too)")
    if result.left:
        console.print(f"not checked yet: {result.left}; the same command goes on")
    if result.images:
        console.print(f"in the run's files: l0tre report {literal(str(folder))}", soft_wrap=True)
    console.print(f"{result.seconds:.2f} s")


def show_costs(costs: Sequence[Mapping[str, float]], unit: str, console: Console) -> None:
    """Print what an exhaustive search costs, level by level."""
    console.print("cost of the grid search for one input, here (proofs take other amounts of work):")
    for cost in costs:
        console.print(
            f"  t = {cost['t']:.0f}: {cost['sets']:,.0f} sets of {unit}s, {cost['points']:,.0f} grid points, "
            f"at most about {duration(cost['seconds'])}"
        )


def show_proof_costs(trial: Sequence[ProofCost], unit: str, console: Console) -> None:
    """Print what proofs took in a trial, level by level."""
    if trial:
        console.print("cost of a proof for one input, here, from a trial with random values (inputs differ much):")
    for cost in trial:
        if cost.over:
            what = duration(cost.seconds)
        elif cost.share:
            what = f"{cost.share:.2g} of its sets in {duration(cost.seconds)}, about {duration(cost.estimate)} for all"
        else:
            what = f"nothing proved in {duration(cost.seconds)}"
        console.print(f"  t = {cost.t} {unit}{'' if cost.t == 1 else 's'}: {what}", soft_wrap=True)


def show_description(
    network: Network, domain: Domain, description: Description, why_not: str, console: Console
) -> None:
    """Print whether a network can be certified, and how its grid will be searched."""
    shape = " x ".join(str(size) for size in network.input_shape)
    console.print(
        f"[bold]{literal(network.name)}[/bold]: input {shape}, {_count(network.classes, 'class')}, "
        f"{_count(domain.groups, domain.unit)}",
        soft_wrap=True,
    )
    proof = f"no, {why_not}" if why_not else "yes: lower bounds for all real values"
    console.print(f"certified: {literal(proof)}", soft_wrap=True)
    if not description.windows:
        console.print("grid search: whole forward passes for every grid point")
        console.print(f"  why:    {literal(description.reason)}", soft_wrap=True)
        return
    levels = ", ".join(str(t) for t in description.levels)
    console.print(f"grid search: windows for t = {levels}; whole forward passes for larger t")
    console.print(
        f"  why:    the network is local up to the last row below, where {description.reason}", soft_wrap=True
    )
    more = "; more at t = 2 and 3" if len(description.levels) > 1 else ""
    console.print(f"  saving: {description.saving:.1f} times fewer multiplications at t = 1{more}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in ("layer", "output", "stride", "one pixel reaches", "share", "receptive field"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in description.layers:
        table.add_row(
            literal(layer.name),
            " x ".join(str(size) for size in layer.shape),
            str(layer.stride),
            f"{layer.window[0]} x {layer.window[1]}",
            f"{layer.share:.1%}",
            f"{layer.field[0]} x {layer.field[1]}",
        )
    console.print(table)
