"""The commands verify, and check: of a certificate or of a run."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.errors import CertificateError, ConfigError

if TYPE_CHECKING:
    from l0tre.certify.checker.certificate import AnyCertificate

__all__ = ["check", "verify"]

# What the checker itself computes in, whatever a certificate says.
CHECKED = "real arithmetic on the network's weights, by the checker's own float64 bounds with rounding errors added"
EXIT_CODES = {"safe": 0, "unsafe": 1, "unknown": 3}


class Format(StrEnum):
    """How a verdict is printed."""

    TEXT = "text"
    JSON = "json"
    VNNCOMP = "vnncomp"


@app.command()
@opt.with_sets
def verify(
    model: opt.ModelArgument,
    data: opt.DataArgument,
    radius: Annotated[int, typer.Option(help="At most so many groups change.")],
    index: Annotated[int, typer.Option(help="Which input of the data, from 0.")] = 0,
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
    report: opt.ReportOption = None,
    *,
    search: opt.Search,
    choices: opt.Choices,
    output: opt.Output,
) -> None:
    """Can changing at most RADIUS groups change the decision? Exit code 0 safe, 1 unsafe, 3 unknown, 2 error.

    DATA can be a VNN-LIB property (.vnnlib): its box is what may change, from the box's middle. Where the middle itself
    violates the property, that is the answer.

    Example: l0tre verify sdnn mnist5k --resize --index 1 --radius 1
    """
    from l0tre.api.verify import verify as verify_one
    from l0tre.api.verify import violated_as_it_is
    from l0tre.cli.live import proof_bar
    from l0tre.cli.pages import about, check_page, write_page
    from l0tre.cli.render import memory_dict, show_verdict
    from l0tre.cli.setup import make_settings, prepare
    from l0tre.cli.signals import stop_on_signal
    from l0tre.cli.verdicts import verdict_dict, vnncomp
    from l0tre.data import select
    from l0tre.memory import default_budget

    opt.check_budget(time_budget)
    check_page(report)
    console = screen(stderr=True)

    def tell(text: str) -> None:
        if not output.silent:
            console.print(literal(text), soft_wrap=True)

    make_settings(search, 0, max(1, radius))  # words that are wrong are refused before a model is loaded
    with stop_on_signal() as stop, proof_bar(console, radius, quiet=output.silent) as show:
        setup = prepare(model, data, choices, quiet=output.silent)
        image = select(setup.data, indices=[index])
        settings = make_settings(search, setup.memory_bytes, max(1, radius), domain=setup.domain)
        middle = violated_as_it_is(setup.network, image, setup.domain, radius) if setup.posed else None
        verdict = middle or verify_one(
            setup.network,
            image,
            radius=radius,
            guarantee=settings.guarantee,
            epsilon=search.epsilon,
            points=search.points,
            grid=settings.grid,
            colours=settings.colours,
            domain=setup.domain,
            memory_bytes=settings.memory_bytes,
            time_budget=time_budget,
            stop=stop,
            certificate=certificate,
            tell=tell,
            progress=False,
            sinks=[show],
        )
    written = certificate if verdict.answer == "safe" else None
    if output.as_json or form is Format.JSON:
        facts = {**verdict_dict(verdict, image), "certificate": written and str(written)}
        say(json.dumps({**facts, **memory_dict(settings.memory_bytes or default_budget(setup.network.device))}))
    elif form is Format.VNNCOMP:
        say(vnncomp(verdict, setup.network, image.images[0]))
    elif output.quiet:
        say(verdict.answer)
    else:
        show_verdict(verdict, image.images[0], image.names, screen())
        if written is not None:
            say(f"certificate: {written}")
    if report is not None:
        from l0tre.report.verdict import verdict_page

        low, high = float(setup.domain.low.min()), float(setup.domain.high.max())
        before = setup.network.source_scores(image.images)
        own = before.argmax(1) if image.labels is None else image.labels
        witness = verdict.witness
        question = f"may at most {radius} of them change without altering the decision? ({verdict.guarantee})"
        after = None if witness is None else setup.network.source_scores(witness.apply(image.images[0])[None])[0]
        page = verdict_page(
            verdict,
            image.images,
            label=int(own[0]),
            index=index,
            low=low,
            high=high,
            names=image.names,
            scores=(before[0], after),
            model=setup.network.name,
            data=image.name,
            groups=setup.domain.groups,
            certificate="" if written is None else str(written),
        )
        write_page(report, lambda: page, asked=[*about(setup, image), ("question", question)], silent=output.silent)
    raise typer.Exit(EXIT_CODES[verdict.answer])


@app.command()
@opt.with_sets
def check(
    certificate: Annotated[
        Path,
        typer.Argument(
            metavar="CERTIFICATE|RUN",
            help="What verify --certificate wrote, or the run folder of evaluate --certificates.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help=f"{opt.MODEL_HELP} For a run only if it cannot be told from it.", show_default=False
        ),
    ] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=opt.DATA_HELP, show_default=False)] = None,
    index: Annotated[
        int | None, typer.Option(help="Which input of the data, from 0.", show_default="the one of the certificate")
    ] = None,
    sample: Annotated[
        str, typer.Option(metavar="SHARE", help="Of a run: check so many of its images, drawn at random, such as 5%.")
    ] = "100%",
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Of a run: check also what was checked before.")] = False,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Of a run: stop after this time; the same command goes on.")
    ] = None,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Of a run: import the Python code that the run folder names.")
    ] = False,
    vnnlib: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Of a certificate: also write its boxes as VNN-LIB properties for other verifiers; --sample applies.",
        ),
    ] = None,
    *,
    choices: opt.Choices,
    output: opt.Output,
) -> None:
    """Check proofs again, with other code than made them. Exit code 0 they hold, 1 they do not, 2 error.

    A file that is missing or no certificate is an error. What is printed was found here, not read from the file. Of a
    run all lower bounds and witnesses are checked; a check that was stopped goes on where it was.

    Example: l0tre check one.l0cert sdnn mnist5k --resize
    """
    from l0tre.api.check import check as check_proof
    from l0tre.api.instances import export_vnnlib
    from l0tre.certify.checker.certificate import read_certificate
    from l0tre.cli.render import show_check
    from l0tre.cli.setup import prepare
    from l0tre.data import select

    if not certificate.exists():
        raise ConfigError(
            f"there is no certificate or run {certificate}: l0tre verify --certificate writes one, and so does l0tre "
            "evaluate --certificates --out RUN"
        )
    if certificate.is_dir():
        if data is not None or index is not None:
            raise ConfigError(
                "a run folder holds its own data: give the run, and the model if it cannot be told from it"
            )
        if vnnlib is not None:
            raise ConfigError(f"--vnnlib writes the boxes of one proof: give a file in {certificate}/certificates")
        _check_run(certificate, model, _share(sample), seed, again, time_budget, trust_run, choices, output)
        return
    if model is None or data is None:
        raise ConfigError("a certificate is checked for a model and an image: l0tre check one.l0cert MODEL DATA")
    proof = read_certificate(certificate)
    place = index if index is not None else _index(proof)
    setup = prepare(model, data, choices)
    image = select(setup.data, indices=[place])
    try:
        with Progress(console=screen(stderr=True), transient=True, disable=output.silent) as bar:
            task = bar.add_task("checking", total=None)
            result = check_proof(
                proof,
                setup.network,
                image,
                setup.domain,
                memory_bytes=setup.memory_bytes,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except CertificateError as error:
        if output.as_json:
            say(json.dumps({"valid": False, "reason": str(error)}))
        else:
            say(f"not valid: {error}")
        raise typer.Exit(1) from error
    if vnnlib is not None:
        written = export_vnnlib(proof, setup.network, image, vnnlib, setup.domain, sample=_share(sample), seed=seed)
        if not output.silent:
            screen(stderr=True).print(f"{written:,} properties are in {literal(str(vnnlib))}", soft_wrap=True)
    if output.as_json:
        facts = {"radius": result.radius, "label": result.label, "nodes": result.nodes, "boxes": result.boxes}
        rest = {"margin": result.margin, "splits": result.splits, "seconds": result.seconds}
        say(json.dumps({"valid": True, "index": place, **facts, **rest, "arithmetic": CHECKED}))
    elif output.quiet:
        say("valid")
    else:
        show_check(result, setup.domain.unit, place, screen())


def _check_run(
    folder: Path,
    model: str | None,
    share: float,
    seed: int,
    again: bool,
    time_budget: float | None,
    trust_run: bool,
    choices: opt.Choices,
    output: opt.Output,
) -> None:
    from l0tre.api.check_run import check_run
    from l0tre.cli.render import show_run_check
    from l0tre.cli.setup import parse_size_or_none
    from l0tre.cli.signals import stop_on_signal
    from l0tre.store import read_config

    opt.check_budget(time_budget)
    unit = read_config(folder)["domain"]["unit"]
    with stop_on_signal() as stop, Progress(console=screen(stderr=True), transient=True, disable=output.silent) as bar:
        task = bar.add_task("checking", total=None)
        result = check_run(
            folder,
            model,
            sample=share,
            seed=seed,
            again=again,
            device=choices.device,
            memory_bytes=parse_size_or_none(choices.memory),
            time_budget=time_budget,
            trust_run=trust_run,
            stop=stop,
            progress=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    nothing = not result.images and not result.before and result.left > 0
    if output.as_json:
        refused = [{"index": image.index, "reason": image.reason} for image in result.refused]
        facts = {"valid": result.valid, "checked": len(result.images), "before": result.before, "left": result.left}
        missing = [image.index for image in result.missing]
        rest = {"missing": missing, "witnesses": result.witnesses, "seconds": result.seconds, "arithmetic": CHECKED}
        say(json.dumps({**facts, "refused": refused, **rest}))
    elif output.quiet:
        so_far = "nothing was checked" if nothing else "valid so far" if result.left else "valid"
        say(so_far if result.valid else "not valid")
    else:
        show_run_check(result, folder, unit, screen())
    if not result.valid or nothing:
        raise typer.Exit(1 if not result.valid else 3)


def _share(text: str) -> float:
    """A share such as ``5%`` or ``0.05``."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--sample {text} is no share: give 5% or 0.05")
    return share


def _index(proof: "AnyCertificate") -> int:
    """Which image a certificate says that it is about; its hash tells whether that is so."""
    index = proof.about.get("index", 0)
    if type(index) is not int:
        raise CertificateError("the certificate does not say in whole numbers which image it is about: give --index")
    return index
