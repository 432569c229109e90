"""The command evaluate: bounds for a set of inputs."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.defaults import ATTACK_QUERIES
from l0tre.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from l0tre.domain import Domain
    from l0tre.evaluation.problem import Settings

__all__ = ["evaluate"]

WITH_RESUME = (
    "model",
    "resume",
    "max_t",
    "fail_under",
    "same_model",
    "trust_run",
    "time_budget",
    "device",
    "load_timeout",
    "live",
    "tensorboard",
    "mlflow",
    "cluster",
    "workers",
    "worker_gpus",
    "quiet",
    "as_json",
)  # all else is stored in the run


@app.command()
@opt.with_sets
def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL|RUN", help=f"{opt.MODEL_HELP} With --resume: a run folder.", show_default=False),
    ],
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=opt.DATA_HELP, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run: it survives a crash.")] = None,
    certificates: Annotated[
        bool,
        typer.Option("--certificates", help="With --out: keep the proof of every level, for l0tre check RUN."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run folder given instead of a model.")
    ] = False,
    same_model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="With --resume: the run's model, named again; needed for Python code."
        ),
    ] = None,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="With --resume: import the Python code that the run folder names.")
    ] = False,
    time_budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this time.")] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="MILLISECONDS",
            help="Real-time mode: random sets of --max-t groups for so long for each input; no lower bound is claimed.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    max_t: Annotated[
        int | None,
        typer.Option(
            help="Search all sets of up to so many pixels (or columns) that change together; each more costs far more.",
            show_default="2; 1 with --sample",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    attack: Annotated[
        int,
        typer.Option(
            metavar="QUERIES",
            help="Queries (forward and backward passes) for each input to look for closer adversarial inputs; "
            "0 for none.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = ATTACK_QUERIES,
    live: Annotated[
        bool, typer.Option("--live", help="Print an address whose page shows the bounds closing in; needs --out.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the bounds over time for TensorBoard.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Log the bounds over time to a run of MLflow.")
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(metavar="RADIUS", help="Exit code 1 if the mean lower bound is below this, for tests in CI."),
    ] = None,
    *,
    search: opt.Search,
    choices: opt.Choices,
    selection: opt.ImageSelection,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Bound the robustness of a network on a set of inputs; stop it any time.

    Example: l0tre evaluate sdnn mnist5k --resize --shuffle --limit 5 --out runs/first
    """
    from l0tre.api.evaluate import begin
    from l0tre.api.resume import resume_anytime
    from l0tre.api.sinks import mlflow_sink, tensorboard_sink, told
    from l0tre.api.tables import rows_inside
    from l0tre.cli.live import follow, live_page
    from l0tre.cli.patience import loads_within
    from l0tre.cli.render import print_snapshot
    from l0tre.cli.setup import make_settings, prepare
    from l0tre.cli.signals import end_on_signal, stop_on_signal
    from l0tre.data import select
    from l0tre.store import refuse_used, stop_asked

    opt.check_budget(time_budget)
    if live and out is None and not resume:
        raise ConfigError("--live shows a run folder: give one with --out FOLDER")
    if sample is not None and not sample > 0:
        raise ConfigError(f"--sample {sample} is no time: give milliseconds above 0, for example 100")
    console = screen(stderr=True)
    sinks = [] if tensorboard is None else [tensorboard_sink(tensorboard)]
    sinks += [] if mlflow is None else [mlflow_sink(mlflow)]

    def tell(text: str) -> None:
        if not output.silent:
            console.print(literal(text), soft_wrap=True)

    with stop_on_signal() as stop, ExitStack() as opened:
        if resume:
            _refuse_with_resume(context)
            out = Path(model)
            with end_on_signal(), loads_within(choices.load_timeout, same_model or model):
                snapshots = resume_anytime(
                    out,
                    same_model,
                    max_t=max_t,
                    device=choices.device,
                    cluster=spread.where,
                    time_budget=time_budget,
                    stop=stop,
                    tell=tell,
                    trust_run=trust_run,
                )
        else:
            if same_model is not None or trust_run:
                raise ConfigError("--model and --trust-run are for --resume: give the model as the first argument")
            if data is None:
                raise ConfigError(
                    f"no data were given: l0tre evaluate {model} images.npz (or --resume for a run folder)"
                )
            if out is not None:
                refuse_used(out)
            most = max_t if max_t is not None else 2 if sample is None else 1

            def searched(memory_bytes: int, domain: "Domain | None") -> "Settings":
                return make_settings(
                    search,
                    memory_bytes,
                    most,
                    domain=domain,
                    attack_queries=attack,
                    sample_ms=sample or 0.0,
                    seed=selection.seed,
                )

            searched(0, None)  # words that are wrong are refused before a model is loaded
            setup = prepare(model, data, choices, quiet=output.silent)
            settings = searched(setup.memory_bytes, setup.domain)
            data_inside = setup.data
            if (choices.value_range or "").startswith("data:"):
                data_inside = rows_inside(setup.data, setup.domain)
                out_of_range = len(setup.data.images) - len(data_inside.images)
                tell(f"{out_of_range} of {len(setup.data.images)} rows lie outside --range and are left out")
            snapshots = begin(
                setup.network,
                select(data_inside, limit=selection.limit, shuffle=selection.shuffle, seed=selection.seed),
                settings=settings,
                domain=setup.domain,
                cluster=spread.where,
                time_budget=time_budget,
                out=out,
                certificates=certificates,
                stop=stop,
                extra_config={"command": shlex.join(["l0tre", *sys.argv[1:]])},
                tell=tell,
            )
        opened.enter_context(live_page(out if live else None, tell))
        result = follow(told(snapshots, sinks), console, quiet=output.silent)
        stopped = stop() or (out is not None and stop_asked(out))
        page = opened.pop_all()
    with page:  # it goes on until all is written
        print_snapshot(result, quiet=output.quiet, as_json=output.as_json, searched=True)
        if not output.silent and not result.finished:
            say(how_to_go_on(out))
        if out is not None:
            _write_report(out, output.silent)
    if stopped:
        raise typer.Exit(130)
    if fail_under is not None and not result.lower >= fail_under:
        say(f"failed: the mean lower bound {result.lower:.3f} is below {fail_under:g}", err=True)
        raise typer.Exit(1)


def how_to_go_on(out: Path | None) -> str:
    """The line that continues a run, or says what would have allowed it."""
    if out is None:
        return "to be able to go on with a run that was stopped, give --out FOLDER"
    return f"to go on: l0tre evaluate --resume {shlex.quote(str(out))}"


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
            "with --model, --trust-run, --max-t, --fail-under, --time-budget, --device, --cluster, --load-timeout, "
            "--quiet or --json"
        )


def _write_report(folder: Path, silent: bool) -> None:
    from l0tre.report import write_report

    try:
        message = f"report: {write_report(folder)}"
    except MissingExtraError as error:
        message = f"no report.html was written: {error}"
    if not silent:
        say(message)
