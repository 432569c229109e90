"""The commands about a single input: verify, and check a certificate."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from l0tre.api.verify import Verdict
from l0tre.api.verify import verify as verify_one
from l0tre.certify.checker.certificate import read_certificate
from l0tre.certify.checker.check import check as check_proof
from l0tre.cli import options as opt
from l0tre.cli.live import stop_on_signal
from l0tre.cli.render import show_check, show_verdict
from l0tre.cli.root import MODEL_HELP, JsonOption, app
from l0tre.cli.setup import Choices, prepare
from l0tre.data import select
from l0tre.errors import CertificateError, ConfigError
from l0tre.memory import default_budget
from l0tre.model.network import Network

__all__ = ["check", "verify"]

EXIT_CODES = {"safe": 0, "unsafe": 1, "unknown": 3}
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]


class Format(StrEnum):
    """How a verdict is printed."""

    TEXT = "text"
    JSON = "json"
    VNNCOMP = "vnncomp"


@app.command()
def verify(
    model: ModelArgument,
    data: opt.DataArgument,
    radius: Annotated[int, typer.Option(help="At most so many groups change.")],
    index: Annotated[int, typer.Option(help="Which image of the data, from 0.")] = 0,
    time_budget: Annotated[
        float | None,
        typer.Option("--time-budget", "--timeout", metavar="SECONDS", help="Answer unknown after this time."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the proof here if the answer is safe; l0tre check re-checks it."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="text, json, or vnncomp (unsat, sat + witness, unknown, timeout).")
    ] = Format.TEXT,
    guarantee: opt.GuaranteeOption = "auto",
    epsilon: opt.EpsilonOption = 0.25,
    grid: opt.GridOption = "uniform",
    colours: opt.ColoursOption = "grid",
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
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
    """Can changing at most RADIUS groups change the decision? Exit code 0 safe, 1 unsafe, 3 unknown, 2 error."""
    opt.check_budget(time_budget)
    choices = Choices(
        model, data, mean, std, input_shape, device, data_dir, split, scale, resize, groups, mask, low, high, memory
    )
    with stop_on_signal() as stop:
        network, images, setup = prepare(choices)
        if radius > setup["domain"].groups:
            most, unit = setup["domain"].groups, setup["domain"].unit
            raise ConfigError(f"--radius is {radius}, but only {most} {unit}s may change: give at most {most}")
        image = select(images, indices=[index])
        verdict = verify_one(
            network,
            image,
            radius=radius,
            time_budget=time_budget,
            stop=stop,
            certificate=certificate,
            guarantee=guarantee,
            epsilon=epsilon,
            grid=grid,
            colours=colours,
            **setup,
        )
    written = certificate if verdict.answer == "safe" else None
    if as_json or form is Format.JSON:
        typer.echo(json.dumps({**_verdict_dict(verdict, index), "certificate": written and str(written)}))
    elif form is Format.VNNCOMP:
        typer.echo(_vnncomp(verdict, network, image.images[0]))
    elif quiet:
        typer.echo(verdict.answer)
    else:
        show_verdict(verdict, Console(highlight=False))
        if written is not None:
            typer.echo(f"certificate: {written}")
    raise typer.Exit(EXIT_CODES[verdict.answer])


@app.command()
def check(
    certificate: Annotated[
        Path,
        typer.Argument(metavar="CERTIFICATE", help="What verify --certificate wrote.", show_default=False),
    ],
    model: ModelArgument,
    data: opt.DataArgument,
    index: Annotated[
        int | None, typer.Option(help="Which image of the data, from 0.", show_default="the one of the certificate")
    ] = None,
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
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
    """Check a proof again, with other code than made it. Exit code 0 it holds, 1 it does not, 2 error."""
    choices = Choices(
        model, data, mean, std, input_shape, device, data_dir, split, scale, resize, groups, mask, low, high, memory
    )
    network, images, setup = prepare(choices)
    if not certificate.is_file():
        raise ConfigError(f"there is no certificate {certificate}: write one with l0tre verify --certificate")
    try:
        proof = read_certificate(certificate)
        place = index if index is not None else int(proof.about.get("index", 0))
        image = select(images, indices=[place]).images[0]
        with Progress(console=Console(stderr=True), transient=True, disable=quiet or as_json) as bar:
            task = bar.add_task("checking nodes", total=len(proof.cells))
            result = check_proof(
                proof,
                network,
                image,
                setup["domain"],
                device=str(network.device),
                memory=setup["memory"] or default_budget(network.device),
                progress=lambda done, _: bar.update(task, completed=done),
            )
    except CertificateError as error:
        if as_json:
            typer.echo(json.dumps({"valid": False, "reason": str(error)}))
        else:
            typer.echo(f"not valid: {error}")
        raise typer.Exit(1) from error
    if as_json:
        facts = {"radius": result.radius, "label": result.label, "nodes": result.nodes, "boxes": result.boxes}
        rest = {"margin": result.margin, "splits": result.splits, "seconds": result.seconds}
        typer.echo(json.dumps({"valid": True, "index": place, **facts, **rest, "arithmetic": proof.arithmetic}))
    elif quiet:
        typer.echo("valid")
    else:
        show_check(result, proof, place, Console(highlight=False))


def _vnncomp(verdict: Verdict, network: Network, image: Tensor) -> str:
    """The verdict in the words of the VNN-COMP, with the witness as input and output values."""
    if verdict.witness is None:
        return "unsat" if verdict.answer == "safe" else "timeout" if verdict.timed_out else "unknown"
    changed = verdict.witness.apply(image)
    inputs = [f"(X_{place} {value!r})" for place, value in enumerate(changed.flatten().tolist())]
    outputs = [f"(Y_{place} {value!r})" for place, value in enumerate(network.replay(changed).tolist())]
    return "sat\n(" + "\n ".join([*inputs, *outputs]) + ")"


def _verdict_dict(verdict: Verdict, index: int) -> dict[str, Any]:
    witness = verdict.witness
    return {
        "index": index,
        "answer": verdict.answer,
        "radius": verdict.radius,
        "lower": verdict.lower,
        "upper": verdict.upper,
        "guarantee": verdict.guarantee,
        "arithmetic": verdict.arithmetic,
        "unit": verdict.unit,
        "reason": verdict.reason,
        "share": verdict.share,
        "witness": None
        if witness is None
        else {"label": witness.label, "positions": witness.positions.tolist(), "values": witness.values.tolist()},
        "seconds": verdict.seconds,
        "queries": verdict.queries,
    }
