"""The command attack: adversarial inputs with as few changed pixels as can be found."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import Progress

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen
from l0tre.defaults import BUDGET, METHODS

if TYPE_CHECKING:
    from l0tre.defaults import Method, Rounding
    from l0tre.report.blocks import Document

__all__ = ["attack"]

ATTACK = "Attack"


@app.command()
@opt.with_sets
def attack(
    model: opt.ModelArgument,
    data: opt.DataArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write adversarial inputs, distances and decisions here.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write them as PNG files too; implies --round 8bit.")
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"auto (a schedule of several), {', '.join(METHODS)}.", rich_help_panel=ATTACK)
    ] = "auto",
    budget: Annotated[
        int, typer.Option(help="Queries (forward and backward passes) for each input.", rich_help_panel=ATTACK)
    ] = BUDGET,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time.", rich_help_panel=ATTACK)
    ] = None,
    targeted: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Reach this class, by name or number, not just any other.", rich_help_panel=ATTACK
        ),
    ] = None,
    rounding: Annotated[
        str,
        typer.Option(
            "--round", help="none, or 8bit: changed values survive storage as an image file.", rich_help_panel=ATTACK
        ),
    ] = "none",
    lower: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A run of l0tre evaluate for this network and data: an input is done one above its certified bound.",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    report: opt.ReportOption = None,
    *,
    choices: opt.Choices,
    selection: opt.Several,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Change as few pixels as possible so that the decision changes; every input found is replayed.

    Example: l0tre attack model.onnx pictures/ --pictures changed/ --targeted 3
    """
    from l0tre.api.attack import attack_details, check_options
    from l0tre.attacks.task import levels_of
    from l0tre.cli import attack_files as files
    from l0tre.cli.pages import about, check_page, source_scores, write_page
    from l0tre.cli.render import memory_dict
    from l0tre.cli.render_attack import attack_dict, show_attack
    from l0tre.cli.setup import parse_class, prepare
    from l0tre.cli.signals import stop_on_signal
    from l0tre.data import select
    from l0tre.memory import default_budget

    opt.check_budget(time_budget)
    check_page(report)
    if pictures is not None:
        rounding = "8bit"  # of what is stored as a picture
    if out is not None:
        files.check_file(out)
    check_options(method, rounding, budget, time_budget)
    with stop_on_signal() as stop:
        setup = prepare(model, data, choices, quiet=output.silent)
        network = setup.network
        target = None if targeted is None else parse_class(targeted, network.classes, setup.data.names)
        if pictures is not None:
            files.check_pictures(pictures, network.input_shape)
        chosen = select(
            setup.data,
            indices=selection.index,
            limit=selection.limit,
            shuffle=selection.shuffle,
            seed=selection.seed,
        )
        labels = chosen.labels if target is None else [target] * len(chosen.images)
        console = screen(stderr=True)
        with Progress(console=console, transient=True, disable=output.silent or not console.is_terminal) as bar:
            line = bar.add_task("attack", total=1.0)

            def progress(stage: str, share: float, mean: float) -> None:
                moment = "before it" if spread.cluster is None else "so far"
                so_far = "" if mean != mean else f", mean distance {mean:.2f} {moment}"
                bar.update(line, completed=share, description=f"{stage}{so_far}")

            result = attack_details(
                network,
                chosen.images,
                labels,
                targeted=targeted is not None,
                method=cast("Method", method),
                domain=setup.domain,
                rounding=cast("Rounding", rounding),
                budget=budget,
                time_budget=time_budget,
                lower=None if lower is None else files.lower_bounds(lower, chosen, network, setup.domain),
                seed=selection.seed,
                memory_bytes=setup.memory_bytes,
                cluster=spread.where,
                progress=progress,
                stop=stop,
            )
        stopped = stop()
    levels = levels_of(setup.domain, chosen.images)
    if out is not None:
        files.write_arrays(out, result, chosen, levels if rounding == "8bit" else 0)

    def page() -> "Document":
        from l0tre.report.attack import attack_page

        low, high = float(setup.domain.low.min()), float(setup.domain.high.max())
        before = source_scores(network, chosen.images)
        after = source_scores(network, result.adversarial)
        pairs = zip(chosen.indices, before, after, result.changed.tolist(), strict=True)
        own = before.argmax(1) if chosen.labels is None else chosen.labels
        return attack_page(
            result,
            chosen.images,
            low=low,
            high=high,
            indices=chosen.indices,
            names=chosen.names,
            labels=own.tolist(),
            scores={index: (old, new if changed else None) for index, old, new, changed in pairs},
            model=network.name,
            data=chosen.name,
        )

    written = 0 if pictures is None else files.write_pictures(pictures, result, chosen, levels)
    if output.as_json:
        budget_bytes = setup.memory_bytes or default_budget(network.device)
        say(json.dumps({**attack_dict(result, chosen), **memory_dict(budget_bytes)}, indent=1))
    elif not output.quiet:
        show_attack(result, chosen, screen(), target)
        if out is not None:
            say(f"adversarial inputs: {out}")
        if pictures is not None:
            say(f"{written} pictures in {pictures}")
    write_page(report, page, asked=about(setup, chosen), silent=output.silent)
    if stopped:
        raise typer.Exit(130)
