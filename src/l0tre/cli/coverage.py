"""The command coverage: how much of a network some inputs exercise."""

import json
from pathlib import Path
from typing import Annotated

import typer

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen
from l0tre.cli.testgen import LayersOption, names_in
from l0tre.errors import ConfigError

__all__ = ["coverage"]

CRITERIA = "Criteria"


@app.command()
@opt.with_sets
def coverage(
    model: opt.ModelArgument,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help=f"A folder of l0tre testgen. {opt.DATA_HELP}", show_default=False),
    ],
    criterion: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="neuron, channel (DeepXplore's), kmnc, boundary, strong, top-k, mcdc (sign-sign, dense layers).",
            rich_help_panel=CRITERIA,
        ),
    ] = "neuron",
    layers: LayersOption = None,
    threshold: Annotated[float, typer.Option(help="Of neuron.", rich_help_panel=CRITERIA)] = 0.0,
    channel_threshold: Annotated[
        float, typer.Option(help="Of channel, 0 or more, less than 1.", rich_help_panel=CRITERIA)
    ] = 0.25,
    k: Annotated[int, typer.Option(help="Of top-k.", rich_help_panel=CRITERIA)] = 2,
    sections: Annotated[int, typer.Option(help="Of kmnc.", rich_help_panel=CRITERIA)] = 1000,
    ranges: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Training inputs for kmnc, boundary and strong; a suite brings its own, or else its seeds'.",
            rich_help_panel=CRITERIA,
        ),
    ] = None,
    *,
    choices: opt.Choices,
    selection: opt.Several,
    output: opt.Output,
) -> None:
    """Measure coverage: of a generated suite with its seeds, or of any inputs.

    Example: l0tre coverage model.onnx suite/ --criterion neuron,kmnc,boundary,top-k
    """
    from l0tre.api.coverage import is_suite, measure_coverage
    from l0tre.api.suite_files import SEEDS
    from l0tre.cli.render_testgen import show_coverage
    from l0tre.cli.setup import prepare
    from l0tre.data import load_data, select

    whole = is_suite(data)
    if whole and (selection.limit is not None or selection.index or selection.shuffle):
        raise ConfigError(f"{data} is a suite, measured as a whole: leave --limit, --index and --shuffle out")
    setup = prepare(model, str(Path(data) / SEEDS) if whole else data, choices)
    chosen = select(
        setup.data,
        indices=selection.index,
        limit=selection.limit,
        shuffle=selection.shuffle,
        seed=selection.seed,
    )
    trained = None
    if ranges is not None:
        trained = load_data(
            str(ranges),
            input_shape=setup.network.input_shape,
            data_dir=choices.data_dir,
            split="train",
            resize=choices.resize,
        )
    figures = measure_coverage(
        setup.network,
        data if whole else chosen,
        criteria=names_in(criterion),
        layers=names_in(layers),
        threshold=threshold,
        channel_threshold=channel_threshold,
        k=k,
        sections=sections,
        ranges=trained,
    )
    if output.as_json:
        say(json.dumps({name: figure.to_json() for name, figure in figures.items()}, indent=1))
    elif not output.quiet:
        show_coverage(figures, screen())
