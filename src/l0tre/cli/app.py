"""The commands."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from l0tre.api.evaluate import anytime, resume_anytime
from l0tre.api.load import load
from l0tre.cli import attack as _attack  # noqa: F401  # its command belongs to the app
from l0tre.cli import compare as _compare  # noqa: F401  # likewise
from l0tre.cli import compare_attacks as _compare_attacks  # noqa: F401  # likewise
from l0tre.cli import options as opt
from l0tre.cli import reproduce as _reproduce  # noqa: F401  # likewise
from l0tre.cli import verify as _verify  # noqa: F401  # likewise
from l0tre.cli import zoo as _zoo  # noqa: F401  # likewise
from l0tre.cli.live import follow, stop_on_signal
from l0tre.cli.render import show_description, show_snapshot
from l0tre.cli.root import MODEL_HELP, JsonOption, UsageError, app
from l0tre.cli.setup import Choices, prepare
from l0tre.data import select
from l0tre.domain import make_domain, make_grid
from l0tre.errors import ConfigError, MissingExtraError
from l0tre.evaluation.problem import ATTACK, cannot_certify
from l0tre.evaluation.results import Snapshot
from l0tre.exhaustive.describe import describe
from l0tre.exhaustive.scanner import choose_engine
from l0tre.store import read_inputs, read_snapshot, write_exports

__all__ = ["UsageError", "app"]  # with all commands

WITH_RESUME = ("model", "resume", "time_budget", "device", "quiet", "as_json")  # all else is stored in the run


@app.command()
def evaluate(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help=f"{MODEL_HELP} With --resume: a run folder.", show_default=False)
    ],
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=opt.DATA_HELP, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run: it survives a crash.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run folder given instead of a model.")
    ] = False,
    time_budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this time.")] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="MILLISECONDS",
            help="Real-time mode: random sets of --max-t groups for so long an image; no lower bound is claimed.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    max_t: Annotated[
        int | None,
        typer.Option(
            help="Most groups changed together.", show_default="2; 1 with --sample", rich_help_panel=opt.SEARCH
        ),
    ] = None,
    guarantee: opt.GuaranteeOption = "auto",
    attack: Annotated[
        int,
        typer.Option(
            metavar="QUERIES",
            help="Forward + backward passes for each image to look for closer adversarial inputs; 0 for none.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = ATTACK,
    epsilon: opt.EpsilonOption = 0.25,
    grid: opt.GridOption = "uniform",
    colours: opt.ColoursOption = "grid",
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
    limit: Annotated[int | None, typer.Option(help="Only so many images.", rich_help_panel=opt.DATA)] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="In random order (see --seed), before --limit.", rich_help_panel=opt.DATA)
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of --shuffle and --sample.", rich_help_panel=opt.DATA)] = 0,
    data_dir: opt.DataDirOption = None,
    split: opt.SplitOption = "test",
    scale: opt.ScaleOption = None,
    resize: opt.ResizeOption = False,
    groups: opt.GroupsOption = "auto",
    mask: opt.MaskOption = None,
    low: opt.LowOption = "0",
    high: opt.HighOption = "1",
    quiet: opt.QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bound the robustness of a network on a set of images; stop it any time."""
    silent = quiet or as_json
    opt.check_budget(time_budget)
    if sample is not None and not sample > 0:
        raise ConfigError(f"--sample {sample} is no time: give milliseconds above 0, for example 100")
    with stop_on_signal() as stop:
        if resume:
            _refuse_with_resume(context)
            out = Path(model)
            snapshots = resume_anytime(out, device=device, time_budget=time_budget, stop=stop)
        else:
            if data is None:
                raise ConfigError(
                    f"no images were given: l0tre evaluate {model} images.npz (or --resume for a run folder)"
                )
            choices = Choices(
                model,
                data,
                mean,
                std,
                input_shape,
                device,
                data_dir,
                split,
                scale,
                resize,
                groups,
                mask,
                low,
                high,
                memory,
            )
            network, images, setup = prepare(choices)
            snapshots = anytime(
                network,
                select(images, limit=limit, shuffle=shuffle, seed=seed),
                max_t=max_t if max_t is not None else 2 if sample is None else 1,
                epsilon=epsilon,
                grid=grid,  # type: ignore[arg-type]
                colours=colours,  # type: ignore[arg-type]
                sample=sample or 0.0,
                seed=seed,
                guarantee=guarantee,  # type: ignore[arg-type]
                attack=attack,
                time_budget=time_budget,
                out=out,
                stop=stop,
                **setup,
            )
        result = follow(snapshots, Console(stderr=True), quiet=silent)
        stopped = stop()
    _print(result, quiet=quiet, as_json=as_json, every=False)
    if out is not None:
        _write_report(out, silent)
    if stopped:
        raise typer.Exit(130)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    input_shape: opt.InputShapeOption = None,
    groups: opt.GroupsOption = "auto",
    colours: opt.ColoursOption = "grid",
    epsilon: opt.EpsilonOption = 0.25,
    device: opt.DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Tell how a network will be searched: windows or whole forward passes, how far a pixel reaches, what it saves."""
    network = load(model, input_shape=opt.parse_shape(input_shape), device=device)
    domain = make_domain(network.input_shape, groups=opt.parse_groups(groups))
    grid = make_grid(domain, epsilon, colours=colours)  # type: ignore[arg-type]
    engine = choose_engine(network, domain.to(network.device), grid.to(network.device))
    description = describe(engine)
    why_not = cannot_certify(network)
    if as_json:
        facts = {
            "model": model,
            "input_shape": network.input_shape,
            "classes": network.classes,
            "certifiable": not why_not,
            "why_not_certifiable": why_not,
        }
        typer.echo(json.dumps({**facts, "unit": domain.unit, "groups": domain.groups, **asdict(description)}, indent=1))
    else:
        show_description(network, domain, description, why_not, Console(highlight=False))


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="List all images.")] = False,
) -> None:
    """Print the bounds of a run, for each image and globally; also while it goes on."""
    _print(read_snapshot(run), quiet=False, as_json=as_json, every=every)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]) -> None:
    """Write report.html, result.json, bounds.csv and witnesses.npz of a run anew."""
    from l0tre.report import write_report

    snapshot, inputs = read_snapshot(run), read_inputs(run)
    files = [*write_exports(run, snapshot, inputs.images, inputs.indices), write_report(run)]
    typer.echo("\n".join(str(file) for file in files))


def _refuse_with_resume(context: typer.Context) -> None:
    """A run goes on as it was set up: options that would change it are refused, not ignored."""
    given = [
        parameter
        for parameter in context.command.params
        if parameter.name not in WITH_RESUME
        and context.get_parameter_source(parameter.name or "").name == "COMMANDLINE"  # type: ignore[union-attr]
    ]
    if given:
        names = ", ".join(parameter.opts[0] if parameter.opts[0].startswith("-") else "DATA" for parameter in given)
        raise ConfigError(
            f"{names} cannot be given with --resume, a run goes on as it was set up: give the run folder alone, "
            "with --time-budget, --device, --quiet or --json"
        )


def _print(result: Snapshot, *, quiet: bool, as_json: bool, every: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=1))
    elif not quiet:
        show_snapshot(result, Console(highlight=False), every=every)


def _write_report(folder: Path, silent: bool) -> None:
    from l0tre.report import write_report

    try:
        message = f"report: {write_report(folder)}"
    except MissingExtraError as error:
        message = f"no report.html was written: {error}"
    if not silent:
        typer.echo(message)
