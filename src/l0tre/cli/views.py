"""The commands that look at networks and runs: inspect, show, report."""

import json
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen
from l0tre.defaults import LOAD_SECONDS
from l0tre.errors import ConfigError

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
    from l0tre.cli.render import show_costs, show_description, show_proof_costs
    from l0tre.cli.setup import parse_groups, parse_shape
    from l0tre.domain import make_domain
    from l0tre.evaluation.forecast import level_costs
    from l0tre.evaluation.problem import cannot_certify
    from l0tre.evaluation.proof_costs import estimate_proof_costs
    from l0tre.exhaustive.describe import describe
    from l0tre.exhaustive.scanner import choose_engine
    from l0tre.grid import make_grid

    with loads_within(load_timeout, model):
        network = load(model, input_shape=parse_shape(input_shape), device=device)
    domain = make_domain(network.input_shape, groups=parse_groups(groups))
    grid = make_grid(domain, epsilon or 0.25, colours=colours)  # type: ignore[arg-type]
    engine = choose_engine(network, domain.to(network.device), grid.to(network.device))
    description = describe(engine)
    costs = level_costs(network, domain, grid.shape[1], description.saving, description.levels)
    why_not = cannot_certify(network)
    trial = [] if why_not else estimate_proof_costs(network, domain)
    if as_json:
        facts = {
            "model": model,
            "input_shape": network.input_shape,
            "classes": network.classes,
            "certifiable": not why_not,
            "why_not_certifiable": why_not,
        }
        about = {"unit": domain.unit, "groups": domain.groups, **asdict(description), "cost": costs}
        about["proof"] = [asdict(cost) for cost in trial]
        say(json.dumps({**facts, **about}, indent=1))
    else:
        show_description(network, domain, description, why_not, screen())
        show_proof_costs(trial, domain.unit, screen())
        show_costs(costs, domain.unit, screen())


@app.command()
def show(
    run: RunArgument,
    as_json: opt.JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="List all inputs.")] = False,
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
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="html,md,csv,json,npz",
            help="Which files to write: report.html, report.md, bounds.csv, result.json, witnesses.npz.",
            show_default="all but md",
        ),
    ] = None,
    maps: Annotated[
        int,
        typer.Option(
            metavar="N", help="Add maps of how far each pixel alone can lower the score, for N inputs.", min=0
        ),
    ] = 0,
    show_it: Annotated[bool, typer.Option("--open", help="Open report.html in a browser.")] = False,
) -> None:
    """Write report.html, result.json, bounds.csv and witnesses.npz of a run anew.

    Example: l0tre report runs/first --open
    """
    from l0tre.api.run_maps import add_maps
    from l0tre.evaluation.exports import export_writes
    from l0tre.files import write_all_whole
    from l0tre.report import read_run, report_writes
    from l0tre.store import export_run, read_inputs

    wish = parse_formats(formats or "html,csv,json,npz")
    if show_it and "html" not in wish:
        raise ConfigError(f"--open shows report.html, which --format {formats} leaves out: add html")
    if maps:
        add_maps(run, maps)
    found = read_run(run)
    snapshot, inputs = found.snapshot, read_inputs(run)
    folder = run if out is None else out
    writes = {
        **export_writes(folder, snapshot, inputs.images, inputs.indices),
        **report_writes(folder, found, [kind for kind in ("html", "md") if kind in wish]),
    }
    writes = {path: write for path, write in writes.items() if path.suffix[1:] in wish}
    if out is None:
        files = export_run(run, writes, snapshot)
    else:
        out.mkdir(parents=True, exist_ok=True)
        files = write_all_whole(writes)
    say("\n".join(str(file) for file in files))
    if show_it:
        open_in_browser(folder / "report.html")


def parse_formats(text: str) -> list[str]:
    """Formats with commas between them."""
    known = ("html", "md", "csv", "json", "npz")
    found = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [part for part in found if part not in known]
    if unknown or not found:
        raise ConfigError(f"--format {text}: give one or more of {', '.join(known)}, with commas between them")
    return found


def open_in_browser(page: Path) -> None:
    """Show a page, or say where it is if there is no browser."""
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser was found: open {page}", err=True)
