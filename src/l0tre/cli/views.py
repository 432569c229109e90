"""The commands that look at networks and runs: inspect, show, report."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen
from l0tre.defaults import LOAD_SECONDS

__all__ = ["inspect", "report", "show"]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]


@app.command()
def inspect(
    model: opt.ModelArgument,
    input_shape: opt.InputShapeOption = None,
    groups: opt.GroupsOption = "auto",
    colours: opt.ColoursOption = "grid",
    epsilon: opt.EpsilonOption = None,
    device: opt.DeviceOption = "auto",
    load_timeout: opt.LoadTimeoutOption = LOAD_SECONDS,
    as_json: opt.JsonOption = False,
) -> None:
    """Tell how a network will be searched: windows or whole forward passes, how far a pixel reaches, what it saves.

    Example: l0tre inspect sdnn
    """
    from l0tre.api.load import load
    from l0tre.cli.patience import loads_within
    from l0tre.cli.render import show_costs, show_description
    from l0tre.cli.setup import parse_groups, parse_shape
    from l0tre.domain import make_domain
    from l0tre.evaluation.forecast import level_costs
    from l0tre.evaluation.problem import cannot_certify
    from l0tre.exhaustive.describe import describe
    from l0tre.exhaustive.scanner import choose_engine
    from l0tre.grid import make_grid

    with loads_within(load_timeout, model):
        network = load(model, input_shape=parse_shape(input_shape), device=device)
    domain = make_domain(network.input_shape, groups=parse_groups(groups))
    grid = make_grid(domain, epsilon or 0.25, colours=colours)  # type: ignore[arg-type]
    engine = choose_engine(network, domain.to(network.device), grid.to(network.device))
    description = describe(engine)
    costs = level_costs(network, domain, grid.shape[1], description.saving)
    why_not = cannot_certify(network)
    if as_json:
        facts = {
            "model": model,
            "input_shape": network.input_shape,
            "classes": network.classes,
            "certifiable": not why_not,
            "why_not_certifiable": why_not,
        }
        about = {"unit": domain.unit, "groups": domain.groups, **asdict(description), "cost": costs}
        say(json.dumps({**facts, **about}, indent=1))
    else:
        show_description(network, domain, description, why_not, screen())
        show_costs(costs, domain.unit, screen())


@app.command()
def show(
    run: RunArgument,
    as_json: opt.JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="List all images.")] = False,
) -> None:
    """Print the bounds of a run, for each image and globally; also while it goes on.

    Example: l0tre show runs/first
    """
    from l0tre.cli.render import print_snapshot
    from l0tre.store import read_snapshot

    print_snapshot(read_snapshot(run), quiet=False, as_json=as_json, every=every)


@app.command()
def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files here, not into the run folder.")
    ] = None,
) -> None:
    """Write report.html, result.json, bounds.csv and witnesses.npz of a run anew.

    Example: l0tre report runs/first
    """
    from l0tre.evaluation.exports import export_writes
    from l0tre.files import write_all_whole
    from l0tre.report import report_writes
    from l0tre.store import export_run, read_inputs, read_snapshot

    snapshot, inputs = read_snapshot(run), read_inputs(run)
    folder = run if out is None else out
    writes = {
        **export_writes(folder, snapshot, inputs.images, inputs.indices),
        **report_writes(folder, snapshot, inputs),
    }
    if out is None:
        files = export_run(run, writes, snapshot)
    else:
        out.mkdir(parents=True, exist_ok=True)
        files = write_all_whole(writes)
    say("\n".join(str(file) for file in files))
