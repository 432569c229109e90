"""The command testgen: tests that activate neurons, as near to the seeds as can be found."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.defaults import MAX_L0, PROOFS

__all__ = ["LayersOption", "generate", "names_in"]

GENERATION = "Generation"

LayersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Layers of neurons, such as relu1,relu2.", show_default="all activations"),
]


def names_in(text: str | None) -> tuple[str, ...]:
    """Names with commas between; none for no text."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


@app.command("testgen")
@opt.with_sets
def generate(
    model: opt.ModelArgument,
    data: Annotated[str, typer.Argument(metavar="SEEDS", help=opt.DATA_HELP, show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write tests, pictures, manifest.csv, curves and suite.json here; the same command goes on with it.",
        ),
    ] = None,
    criterion: Annotated[
        str,
        typer.Option(
            help="neuron (a value above --threshold) or strong (a value above the highest one on --ranges).",
            rich_help_panel=GENERATION,
        ),
    ] = "neuron",
    threshold: Annotated[
        float, typer.Option(help="What a neuron's value must exceed.", rich_help_panel=GENERATION)
    ] = 0.0,
    layers: LayersOption = None,
    ranges: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="Training inputs that give neurons their ranges.", rich_help_panel=GENERATION
        ),
    ] = None,
    max_l0: Annotated[
        int, typer.Option(help="Pixels or features that a test may change, at the most.", rich_help_panel=GENERATION)
    ] = MAX_L0,
    proofs: Annotated[
        int,
        typer.Option(help="Prove neurons out of reach of so many changes; 0: no proofs.", rich_help_panel=GENERATION),
    ] = PROOFS,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline", help="Try as many random changes, to compare.", rich_help_panel=GENERATION
        ),
    ] = True,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time.", rich_help_panel=GENERATION)
    ] = None,
    report: opt.ReportOption = None,
    *,
    choices: opt.Choices,
    selection: opt.Several,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Generate tests: for every neuron that no seed activates the nearest input that does, or a proof that none does.

    Example: l0tre testgen model.onnx seeds.npz --max-l0 100 --out suite/
    """
    from l0tre.api.testgen import generate_tests
    from l0tre.cli.pages import about, check_page, write_page
    from l0tre.cli.render_testgen import show_suite
    from l0tre.cli.setup import prepare
    from l0tre.cli.signals import stop_on_signal
    from l0tre.data import load_data, select

    opt.check_budget(time_budget)
    check_page(report)
    with stop_on_signal() as stop:
        setup = prepare(model, data, choices, quiet=output.silent)
        chosen = select(
            setup.data,
            indices=selection.index,
            limit=selection.limit,
            shuffle=selection.shuffle,
            seed=selection.seed,
        )
        shape, folder = setup.network.input_shape, choices.data_dir
        trained = None
        if ranges is not None:
            trained = load_data(str(ranges), input_shape=shape, data_dir=folder, split="train", resize=choices.resize)
        console = screen(stderr=True)
        with Progress(console=console, transient=True, disable=output.silent or not console.is_terminal) as bar:
            line = bar.add_task("seeds", total=1.0)

            def progress(what: str, coverage: float) -> None:
                bar.update(line, completed=coverage, description=literal(f"{what}: {100 * coverage:.2f} % covered"))

            suite = generate_tests(
                setup.network,
                chosen,
                criterion=criterion,
                threshold=threshold,
                layers=names_in(layers),
                ranges=trained,
                max_l0=max_l0,
                proofs=proofs,
                baseline=baseline,
                domain=setup.domain,
                time_budget=time_budget,
                out=out,
                seed=selection.seed,
                memory_bytes=setup.memory_bytes,
                cluster=spread.where,
                progress=progress,
                stop=stop,
            )
        stopped = stop()
    if output.as_json:
        say(json.dumps(suite.to_json(), indent=1))
    elif not output.quiet:
        show_suite(suite, screen())
        if out is not None:
            say(f"suite: {out}")
    if report is not None:
        from l0tre.report.suite import suite_page

        low, high = float(setup.domain.low.min()), float(setup.domain.high.max())
        page = suite_page(suite, names=chosen.names, low=low, high=high)
        write_page(report, lambda: page, asked=about(setup, chosen), silent=output.silent)
    if stopped:
        raise typer.Exit(130)
