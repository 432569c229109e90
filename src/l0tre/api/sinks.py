"""Where an evaluation's bounds can go while it runs: TensorBoard, MLflow, a progress bar, or a function of yours."""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from l0tre.errors import ConfigError, MissingExtraError, require
from l0tre.evaluation.results import Snapshot

__all__ = ["Sink", "mlflow_sink", "tensorboard_sink", "told"]

SILENT = "L0TRE_PROGRESS"  # set to 0, notebooks show no bars unless asked to


@dataclass(frozen=True)
class Sink:
    """Something that is told the bounds.

    Attributes:
        tell: Is given a snapshot whenever its means, its level or its number of exact images changed.
        close: Is called when there are no more, with whether the search is complete.
    """

    tell: Callable[[Snapshot], object]
    close: Callable[[bool], object] = lambda _: None


def figures_of(snapshot: Snapshot) -> dict[str, float]:
    """What is told, by name."""
    known = [image.upper for image in snapshot.images if image.witness is not None]
    total = max(1, len(snapshot.images))
    found = {
        "lower_mean": snapshot.lower,
        "exact_share": snapshot.converged / total,
        "without_witness": float(snapshot.without_witness),
        "level": float(snapshot.t),
        "seconds": snapshot.seconds,
    }
    return {**found, "upper_mean": sum(known) / len(known)} if known else found


def tensorboard_sink(folder: str | Path) -> Sink:
    """Write scalars for TensorBoard; the step is the time in milliseconds of work.

    Args:
        folder: Where events go, as for ``tensorboard --logdir``.

    Raises:
        MissingExtraError: If tensorboard is not installed.
    """
    writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def tell(snapshot: Snapshot) -> None:
        for name, value in figures_of(snapshot).items():
            writer.add_scalar(f"l0tre/{name}", value, global_step=_step(snapshot))

    return Sink(tell, lambda _: writer.close())


def mlflow_sink(experiment: str = "l0tre", *, uri: str | None = None, name: str | None = None) -> Sink:
    """Log metrics and settings to a new run of MLflow; the step is the time in milliseconds of work.

    Args:
        experiment: Its experiment, made if there is none.
        uri: The tracking server or folder; default what MLflow is set to.
        name: Of the run; default one that MLflow makes up.

    Raises:
        ConfigError: If MLflow cannot keep runs there.
        MissingExtraError: If mlflow is not installed.
    """
    mlflow = require("mlflow", "mlflow")
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if found is None else found.experiment_id
        run = client.create_run(place, run_name=name).info.run_id
    except mlflow.exceptions.MlflowException as error:
        raise ConfigError(
            f"MLflow cannot keep runs there ({str(error).strip().splitlines()[0]}): set MLFLOW_TRACKING_URI, such as "
            "sqlite:///mlflow.db or the address of a server"
        ) from error
    begun: list[bool] = []

    def tell(snapshot: Snapshot) -> None:
        if not begun:
            begun.append(True)
            settings = snapshot.config.get("settings", {})
            model, data = (snapshot.config.get(key, {}).get("name", "") for key in ("model", "data"))
            for key, value in {"model": model, "data": data, "unit": snapshot.unit, **settings}.items():
                client.log_param(run, key, value)
        for key, value in figures_of(snapshot).items():
            client.log_metric(run, key, value, step=_step(snapshot))

    return Sink(tell, lambda finished: client.set_terminated(run, "FINISHED" if finished else "KILLED"))


def _step(snapshot: Snapshot) -> int:
    return round(1000 * snapshot.seconds)


def told(
    snapshots: Iterator[Snapshot],
    sinks: Sequence[Sink | Callable[[Snapshot], object]] = (),
    progress: bool | None = False,
) -> Generator[Snapshot, None, None]:
    """Pass snapshots on, and tell sinks and a progress bar.

    Args:
        snapshots: From an evaluation.
        sinks: Who is told; a function is told every snapshot.
        progress: Whether to show a bar; ``None`` in notebooks only.
    """
    chosen = [sink if isinstance(sink, Sink) else Sink(sink) for sink in sinks]
    plain = [not isinstance(sink, Sink) for sink in sinks]
    shown = in_notebook() and os.environ.get(SILENT) != "0" if progress is None else progress
    return _told(snapshots, list(zip(chosen, plain, strict=True)), shown=shown, needed=bool(progress))


def _told(
    snapshots: Iterator[Snapshot], sinks: Sequence[tuple[Sink, bool]], *, shown: bool, needed: bool
) -> Generator[Snapshot, None, None]:
    before: object = None
    last: Snapshot | None = None
    with ExitStack() as stack:
        stack.callback(getattr(snapshots, "close", lambda: None))  # a run writes its files when it is left early
        for sink, _ in sinks:
            stack.callback(_close, sink, lambda: last)
        update = stack.enter_context(_bar(needed=needed)) if shown else _nothing
        for last in snapshots:
            now = (last.lower, last.upper, last.t, last.converged, last.finished)
            for sink, every in sinks:
                if every or now != before:
                    sink.tell(last)
            before = now
            update(last)
            yield last


def _close(sink: Sink, last: Callable[[], Snapshot | None]) -> None:
    snapshot = last()
    sink.close(snapshot is not None and snapshot.finished)


def _nothing(_: Snapshot) -> None:
    """Show nothing."""


@contextmanager
def _bar(*, needed: bool) -> Iterator[Callable[[Snapshot], None]]:
    """A bar of tqdm, which draws itself as a notebook or a terminal can."""
    try:
        tqdm = require("tqdm.auto", "notebook").tqdm
    except MissingExtraError:
        if needed:
            raise
        yield _nothing
        return
    with tqdm() as bar:

        def update(snapshot: Snapshot) -> None:
            alone = len(snapshot.images) == 1
            bar.total = 1.0 if alone else len(snapshot.images)
            bar.n = round(snapshot.level_share, 3) if alone else snapshot.converged
            bar.set_description(f"t = {snapshot.t}", refresh=False)
            bar.set_postfix(lower=f"{snapshot.lower:.3f}", upper=f"{snapshot.upper:.3f}", refresh=False)
            bar.update(0)

        yield update
        bar.refresh()


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
