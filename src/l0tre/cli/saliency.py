"""The command saliency: how far each pixel alone can move a score or a neuron, as a picture and as arrays."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from l0tre.api.drawings import Drawing
    from l0tre.cli.setup import Setup
    from l0tre.maps.pairs import Pairs
    from l0tre.maps.together import Together
    from l0tre.maps.work import MapStep
    from l0tre.names import Names

__all__ = ["saliency"]

MAP = "Map"
STRONGEST = 100  # pixels that --coarse finds
SHOWN = 5  # of them, and of pairs, on a terminal
PAIRED = 24  # pixels of which all pairs are looked at
SAVE_SECONDS = 20.0  # between two writings of what is known


@app.command()
@opt.with_sets
def saliency(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... DATA",
            help=f"{opt.MODEL_HELP} Several for maps side by side. Last the input: {opt.DATA_HELP}",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE.png", help="The picture; the arrays go beside it, as FILE.npz.")
    ] = Path("map.png"),
    index: Annotated[int, typer.Option(help="Which input of the data, from 0.", rich_help_panel=opt.DATA)] = 0,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Whose score, by name or number.", show_default="the decision", rich_help_panel=MAP
        ),
    ] = None,
    neuron: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER:CHANNEL",
            help="Instead of a class a hidden neuron, several times for maps side by side: LAYER:CHANNEL (mean of its "
            "map), LAYER:CHANNEL:ROW:COLUMN, LAYER:NUMBER.",
            rich_help_panel=MAP,
        ),
    ] = None,
    list_layers: Annotated[
        bool, typer.Option("--layers", help="List the layers that --neuron can name.", rich_help_panel=MAP)
    ] = False,
    coarse: Annotated[
        bool,
        typer.Option(
            "--coarse", help="Stop when the strongest pixels are found; predict the rest.", rich_help_panel=MAP
        ),
    ] = False,
    strongest: Annotated[int, typer.Option(help="How many pixels --coarse finds.", rich_help_panel=MAP)] = STRONGEST,
    signed: Annotated[
        bool, typer.Option("--signed", help="Show pixels that can raise the number, too.", rich_help_panel=MAP)
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help=f"Which of the {PAIRED} strongest pixels act together.", rich_help_panel=MAP)
    ] = False,
    together: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Choose N pixels one after the other, each for what it adds to those before it.",
            show_default="none",
            rich_help_panel=MAP,
        ),
    ] = 0,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Try a grid of colours at most so far apart.",
            show_default="only darkest and brightest of each channel",
            rich_help_panel=MAP,
        ),
    ] = None,
    attack: Annotated[
        bool,
        typer.Option("--attack", help="Show an image with another decision above the map.", rich_help_panel=MAP),
    ] = False,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Names of the classes, one a line from class 0 on.", rich_help_panel=MAP),
    ] = None,
    float32: Annotated[
        bool,
        typer.Option("--float32", help="Rank in float32, too; on a GPU half precision does it.", rich_help_panel=MAP),
    ] = False,
    time_budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop each map after this time.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the maps beside --out; give all else as the first time.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.", rich_help_panel=opt.DATA)] = 0,
    report: opt.ReportOption = None,
    *,
    choices: opt.Choices,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """How far can each pixel alone lower the score? Over all colours it can take; a picture and the arrays.

    Ctrl-C keeps the map so far. Example: l0tre saliency sdnn mnist5k --resize --out map.png
    """
    from l0tre.api.drawings import begin_map
    from l0tre.api.spread_maps import draw_all
    from l0tre.cli.pages import about, check_page, write_page
    from l0tre.cli.render_saliency import map_dict, show_layers, show_map
    from l0tre.cli.setup import load_alone, parse_class, prepare, read_class_names
    from l0tre.cli.signals import stop_on_signal
    from l0tre.data import select
    from l0tre.figures.canvas import cannot_draw
    from l0tre.figures.maps import Panel, draw_maps
    from l0tre.maps.observed import layers
    from l0tre.maps.pairs import interacting_pairs
    from l0tre.maps.together import lower_together

    opt.check_budget(time_budget)
    check_page(report)
    if list_layers and len(words) == 1:
        network = load_alone(words[0], choices)
        show_layers(layers(network), network.name, screen(), as_json=output.as_json)
        return
    *models, data = words if len(words) > 1 else [*words, ""]
    if not data:
        raise ConfigError("a network and an image are needed: l0tre saliency MODEL IMAGE")
    if out.suffix.lower() != ".png" or out.is_dir():
        raise ConfigError(f"--out {out} is no picture: give a file such as map.png")
    if neuron and target is not None:
        raise ConfigError("a map is of a class's score (--target) or of a neuron (--neuron): give one of them")
    if strongest < 1:
        raise ConfigError(f"--strongest is {strongest}: give 1 or more")
    if together < 0:
        raise ConfigError(f"--together is {together}: give a number of pixels")
    given = read_class_names(names)
    cannot = cannot_draw()
    if cannot and not output.silent:
        say(f"no picture, only arrays: {cannot}", err=True)
    facts, panels = dict[int, dict[str, Any]](), dict[int, Panel]()
    acted, chosen = dict[int, "Pairs | None"](), dict[int, "Together | None"]()
    every: Sequence[str | None] = neuron or (None,)
    wanted = [(model, each) for model in models for each in every]
    titles = [Path(model).name if len(models) > 1 or each is None else each for model, each in wanted]
    files = [_beside(out, number, len(wanted)) for number in range(len(wanted))]
    where = spread.where
    with stop_on_signal() as stop:
        setups = {model: prepare(model, data, choices, quiet=output.silent) for model in models}
        if list_layers:
            for setup in setups.values():
                show_layers(layers(setup.network), setup.network.name, screen(), as_json=output.as_json)
            return
        pictures, drawings, said = [], [], []
        for (model, each), file in zip(wanted, files, strict=True):
            setup = setups[model]
            one = select(setup.data, indices=[index])
            known = given or setup.data.names.classes or setup.network.names.classes
            named = replace(one.names, classes=known)
            pictures.append(one)
            said.append(named)
            drawings.append(
                begin_map(
                    setup.network,
                    one.images[0],
                    target=None if target is None else parse_class(target, setup.network.classes, named, "--target"),
                    neuron=each,
                    classes=known,
                    epsilon=epsilon,
                    domain=setup.domain,
                    memory_bytes=setup.memory_bytes,
                    halves=not float32,
                    resume=file if resume else None,
                )
            )
        steps = draw_all(
            drawings,
            where,
            coarse=coarse,
            strongest=strongest,
            both=signed,
            seed=seed,
            time_budget=time_budget,
            stop=stop,
        )
        for number in _drawn(drawings, steps, files, titles, output):
            (model, _), setup, one = wanted[number], setups[wanted[number][0]], pictures[number]
            drawing = drawings[number]
            found = drawing.now()
            acting = interacting_pairs(drawing.perturber, drawing.state, PAIRED) if pairs and not stop() else None
            some = lower_together(drawing.perturber, drawing.state, together) if together and not stop() else None
            changed = _adversarial(setup, one.images, said[number], stop) if attack and not stop() else None
            panels[number] = Panel(_title(model, one.names.inputs, index), one.images[0], found, changed)
            acted[number], chosen[number] = acting, some
            facts[number] = map_dict(found, model, files[number], acting, some)
            if not output.silent:
                show_map(found, titles[number], acting, some, screen(), SHOWN, said[number])
        stopped = stop()
        if not panels:  # workers had not begun
            if not output.quiet:
                screen(stderr=True).print("stopped before anything was measured: nothing is written")
            raise typer.Exit(130)
        shown = [panels[number] for number in sorted(panels)]
        low = min(float(setup.domain.low.min()) for setup in setups.values())
        high = max(float(setup.domain.high.max()) for setup in setups.values())
        if not cannot:
            draw_maps(out, shown, signed=signed, low=low, high=high)
    if report is not None and shown:
        from l0tre.report.maps import saliency_page

        page = saliency_page(
            [panel.found for panel in shown],
            [panel.image for panel in shown],
            titles=[panel.title for panel in shown],
            indices=[index] * len(shown),
            names=said[0],
            low=low,
            high=high,
            pairs=[acted[number] for number in sorted(acted)],
            together=[chosen[number] for number in sorted(chosen)],
        )
        asked = [fact for each in setups.values() for fact in about(each, pictures[0])]
        write_page(report, lambda: page, asked=list(dict.fromkeys(asked)), silent=output.silent)
    if output.as_json:
        say(
            json.dumps(
                {"picture": None if cannot else str(out), "maps": [facts[number] for number in sorted(facts)]}, indent=1
            )
        )
    elif not output.quiet:
        arrays = ", ".join(str(facts[number]["arrays"]) for number in sorted(facts))
        say(f"written: {arrays}" if cannot else f"written: {out}, {arrays}")
        if stopped:
            say("stopped: the same command with --resume goes on")
    if stopped:
        raise typer.Exit(130)


def _beside(out: Path, number: int, count: int) -> Path:
    """The file of arrays of one of several maps."""
    return out.with_name(f"{out.stem}.npz" if count == 1 else f"{out.stem}-{number + 1}.npz")


def _title(model: str, inputs: tuple[str, ...], index: int) -> str:
    return f"{Path(model).stem}, {Path(inputs[0]).name if inputs else f'input {index}'}"


def _drawn(
    drawings: "Sequence[Drawing]",
    steps: "Iterator[tuple[int, MapStep]]",
    files: Sequence[Path],
    titles: Sequence[str],
    output: opt.Output,
) -> "Iterator[int]":
    """Draw maps with a progress bar each, write what is known now and then; yields those that are drawn."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    console, saved = screen(stderr=True), dict[int, float]()
    bars: dict[int, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=output.silent or not console.is_terminal) as bar:
        for number, step in steps:
            if number not in bars:
                bars[number] = bar.add_task(literal(titles[number]), total=1.0)
                saved[number] = time.monotonic()
            stage = {"strongest": "the strongest first, ", "rest": "all others, "}.get(step.stage, "")
            words = f"{literal(titles[number])}: {stage}{step.done:,} measured"
            bar.update(bars[number], completed=step.share, description=words)
            done = step.stage == "done"
            if done or time.monotonic() - saved[number] > SAVE_SECONDS:
                drawings[number].write(files[number])
                saved[number] = time.monotonic()
            if done:
                bar.remove_task(bars[number])
                yield number


def _adversarial(
    setup: "Setup", images: "Tensor", names: "Names", stop: "Callable[[], bool]"
) -> "tuple[Tensor, str] | None":
    """A changed image with another decision, and what it became; ``None`` where none was found."""
    from l0tre.api.attack import attack_details
    from l0tre.figures.maps import caption

    found = attack_details(setup.network, images, domain=setup.domain, memory_bytes=setup.memory_bytes, stop=stop)
    if not bool(found.changed[0]):
        return None
    return found.adversarial[0], caption(int(found.distance[0]), found.unit, names.label(int(found.decisions[0])))
