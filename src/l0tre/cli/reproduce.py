"""The commands that reproduce the paper's case studies."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown
from rich.progress import Progress

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.defaults import MAX_L0
from l0tre.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from l0tre.evaluation.results import Snapshot
    from l0tre.studies.plans import PlannedRun
    from l0tre.studies.summary import Summary

__all__ = ["case_1", "case_3", "case_4", "case_5"]

studies = typer.Typer(
    no_args_is_help=True,
    help="Reproduce a case study of the paper: runs, tables and figures in one folder.\n\n"
    "Example: l0tre reproduce case-1 --networks sdnn --images 20 --max-t 1 --data mnist5k --out runs/case1",
)
app.add_typer(studies, name="reproduce")


OutOption = Annotated[
    Path, typer.Option(help="Folder of the study: run folders, tables, figures. The same command goes on with it.")
]
ImagesOption = Annotated[int | None, typer.Option(min=1, help="Number of test images.", show_default="the paper's")]
NetworksOption = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Networks, with commas between.", show_default="the paper's")
]
KindsOption = Annotated[
    str,
    typer.Option(
        metavar="A,B,...",
        help="Kinds of runs, with commas between: paper (grid, upper bounds from the levels alone, as in the paper), "
        "grid (grid, an attack before the levels), certified (all real values, an attack before the levels).",
    ),
]
MaxTOption = Annotated[
    int | None, typer.Option(min=1, help="Most pixels changed together.", show_default="the paper's")
]
BudgetOption = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop each run after this time.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the choice of images.")]
StudyDataOption = Annotated[str, typer.Option(metavar="DATA", help=opt.DATA_HELP)]
FiguresOnlyOption = Annotated[
    bool, typer.Option("--figures-only", help="Run nothing: write tables and figures anew from the run folders.")
]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Which runs of a study; what is left out is as in the paper."""

    images: ImagesOption = None
    networks: NetworksOption = None
    max_t: MaxTOption = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the images come from, and on what and how long to compute."""

    time_budget: BudgetOption = None
    seed: SeedOption = 0
    data: StudyDataOption = "mnist"
    data_dir: opt.DataDirOption = None
    device: opt.DeviceOption = "auto"


@studies.command("case-1")
@opt.with_sets
def case_1(
    out: OutOption,
    kinds: KindsOption = "paper,grid,certified",
    figures_only: FiguresOnlyOption = False,
    *,
    study: Study,
    source: Source,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Convergence and global robustness: sdnn (t <= 3, 5,300 images) and dnn-0 (t <= 2, 2,400), epsilon 0.25.

    Example: l0tre reproduce case-1 --networks sdnn --images 20 --max-t 1 --data mnist5k --out runs/case1
    """
    from l0tre.studies import case_one

    names = _networks(study.networks, case_one.NETWORKS)
    plans = case_one.plan_case_one(names, _kinds(kinds), images=study.images, max_t=study.max_t)
    _reproduce(out, () if figures_only else plans, source, spread, case_one.summarise_case_one, output)


@studies.command("case-3")
@opt.with_sets
def case_3(
    out: OutOption,
    networks: NetworksOption = None,
    images: ImagesOption = None,
    max_l0: Annotated[int, typer.Option(min=1, help="Pixels that a test may change, at the most.")] = MAX_L0,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop each suite after this time.")
    ] = None,
    seed: SeedOption = 0,
    data_dir: opt.DataDirOption = None,
    device: opt.DeviceOption = "auto",
    figures_only: FiguresOnlyOption = False,
    *,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Test generation: mnist-attack and cifar10-attack, a suite from each of 10 test images.

    Example: l0tre reproduce case-3 --networks mnist-attack --images 1 --max-l0 2 --time-budget 60 --out runs/case3
    """
    from l0tre.cli.signals import stop_on_signal
    from l0tre.studies import case_three

    opt.check_budget(time_budget)
    console = screen(stderr=True)
    with (
        stop_on_signal() as stop,
        Progress(console=console, transient=True, disable=output.silent or not console.is_terminal) as bar,
    ):

        def watch(name: str) -> Callable[[str, float], None]:
            line = bar.add_task(literal(name), total=1.0)
            return lambda what, share: bar.update(
                line, completed=share, description=literal(f"{name}, {what}: {100 * share:.2f} % covered")
            )

        if not figures_only:
            case_three.carry_out_case_three(
                out,
                _networks(networks, tuple(case_three.NETWORKS)),
                seeds=images or case_three.SEEDS,
                max_l0=max_l0,
                data_dir=data_dir,
                seed=seed,
                device=device,
                time_budget=time_budget,
                cluster=spread.where,
                stop=stop,
                watch=watch,
            )
        stopped = stop()
    _show(out, case_three.summarise_case_three(out), output)
    if stopped:
        raise typer.Exit(130)


@studies.command("case-4")
@opt.with_sets
def case_4(
    out: OutOption,
    kinds: KindsOption = "grid",
    figures_only: FiguresOnlyOption = False,
    *,
    study: Study,
    source: Source,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Architectures and robustness: dnn-1 to dnn-7, t <= 2, 1,000 images, epsilon 0.3.

    dnn-4 to dnn-7 are not bundled: first train them, each with l0tre zoo train.

    Example: l0tre reproduce case-4 --networks dnn-1 --images 20 --max-t 1 --data mnist5k --out runs/case4
    """
    from l0tre.studies import case_four

    names = _networks(study.networks, case_four.NETWORKS)
    plans = case_four.plan_case_four(names, _kinds(kinds), images=study.images, max_t=study.max_t)
    _reproduce(out, () if figures_only else plans, source, spread, case_four.summarise_case_four, output)


@studies.command("case-5")
@opt.with_sets
def case_5(
    out: OutOption,
    networks: Annotated[str, typer.Option(metavar="A,B,...", help=f"{opt.MODEL_HELP} With commas between.")],
    data: Annotated[str, typer.Option(metavar="DATA", help=opt.DATA_HELP)],
    images: Annotated[int, typer.Option(min=1, help="Number of images that are classified correctly.")] = 20,
    coarse: Annotated[bool, typer.Option("--coarse", help="Maps end with the strongest 100 pixels.")] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Spacing of the colours.", show_default="only darkest and brightest of each channel"),
    ] = None,
    attack: Annotated[int, typer.Option(metavar="QUERIES", help="Of the attack on each image; 0 for none.")] = 2000,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Measure captum's methods, too, where it is installed.")
    ] = True,
    mean: Annotated[str | None, typer.Option(help="Mean inside the models, as for l0tre evaluate.")] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation inside the models, likewise.")] = None,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line from class 0 on.")
    ] = None,
    time_budget: BudgetOption = None,
    seed: SeedOption = 0,
    data_dir: opt.DataDirOption = None,
    device: opt.DeviceOption = "auto",
    *,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Saliency maps of networks for photographs (or any others), adversarial images, and how good the maps are.

    The paper has 20 photographs, t = 1, AlexNet, VGG-16/19 and ResNet-50/101, which are not bundled: give your files.

    Example: l0tre reproduce case-5 --networks dnn-0 --data mnist5k --images 2 --attack 200 --out runs/case5
    """
    from l0tre.cli.setup import parse_numbers, read_class_names
    from l0tre.cli.signals import stop_on_signal
    from l0tre.studies.case_five import MapPlan, carry_out_maps

    opt.check_budget(time_budget)
    plan = MapPlan(
        _names(networks, "--networks"),
        data,
        images,
        coarse,
        epsilon,
        attack,
        compare,
        parse_numbers(mean, "--mean"),
        parse_numbers(std, "--std"),
        seed,
        device,
        data_dir,
        time_budget,
        read_class_names(names),
    )
    console = screen(stderr=True)

    def tell(text: str) -> None:
        if not output.silent:
            console.print(f"{literal(text)} ...")

    with stop_on_signal() as stop:
        summary = carry_out_maps(plan, out, cluster=spread.where, stop=stop, tell=tell)
        stopped = stop()
    if output.as_json:
        say(json.dumps(summary.facts, indent=1))
    elif not output.quiet:
        screen().print(Markdown(summary.brief))
        say(f"written: {out / 'summary.md'}, {out / 'summary.json'}, {len(summary.files) - 2} tables and pictures")
        if page := _page(out):
            say(f"report: {page}")
    if stopped:
        raise typer.Exit(130)


def _networks(text: str | None, default: Sequence[str]) -> list[str]:
    return list(default) if text is None else _names(text, "--networks")


def _kinds(text: str) -> list[str]:
    from l0tre.studies.runs import KINDS

    kinds = _names(text, "--kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kinds {text!r} has the unknown kind {kind!r}: give some of {', '.join(KINDS)}")
    return kinds


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{option} {text!r} has an empty or repeated name: give names with commas between")
    return names


def _reproduce(
    out: Path,
    plans: "Sequence[PlannedRun]",
    source: Source,
    spread: opt.Spread,
    summarise: "Callable[[Path], Summary]",
    output: opt.Output,
) -> None:
    """Carry out the runs, if any, then write and print what they say."""
    from l0tre.cli.live import follow
    from l0tre.cli.signals import stop_on_signal
    from l0tre.figures.canvas import cannot_draw
    from l0tre.studies.plans import carry_out

    opt.check_budget(source.time_budget)
    if not plans and (reason := cannot_draw()):
        raise MissingExtraError(reason)
    console = screen(stderr=True)

    def watch(name: str, snapshots: "Iterator[Snapshot]") -> "Snapshot":
        if not output.silent:
            console.print(f"{literal(name)} ...")
        return follow(snapshots, console, quiet=output.silent)

    with stop_on_signal() as stop:
        if plans:
            carry_out(plans, out, **asdict(source), cluster=spread.where, stop=stop, watch=watch)
        stopped = stop()
    _show(out, summarise(out), output)
    if stopped:
        raise typer.Exit(130)


def _show(out: Path, summary: "Summary", output: opt.Output) -> None:
    """Print what a study says, and where it is."""
    page = _page(out)
    if output.as_json:
        say(json.dumps(summary.facts, indent=1))
    elif not output.quiet:
        screen().print(Markdown(summary.brief))
        say(f"written: {out / 'summary.md'}, {out / 'summary.json'}, {len(summary.files) - 2} tables and figures")
        if page:
            say(f"report: {page}")
        if summary.left_out:
            say(f"figures were left out: {summary.left_out}; then add --figures-only to this command")


def _page(out: Path) -> Path | None:
    """Write a page of all runs side by side, if that is possible; a study without runs has written its own."""
    from l0tre.store import DATABASE, read_snapshot
    from l0tre.studies.pages import PAGE

    try:
        from l0tre.report import runs_page, save_page

        runs = {path.parent.relative_to(out).as_posix(): path.parent for path in sorted(out.rglob(DATABASE))}
        if not runs:
            return out / PAGE if (out / PAGE).is_file() else None
        return save_page(runs_page({name: read_snapshot(run) for name, run in runs.items()}), out / PAGE)
    except MissingExtraError:
        return None
