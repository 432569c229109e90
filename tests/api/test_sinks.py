"""Who is told the bounds of an evaluation while it runs."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.api.sinks import told
from l0tre.errors import ConfigError
from tests.tools import NO_ATTACK


def evaluated(**options: Any) -> l0tre.Snapshot:
    torch.manual_seed(0)
    return l0tre.evaluate(nn.Linear(5, 3), torch.rand(3, 5), max_t=2, **NO_ATTACK, **options)


def test_functions_are_told_everything_and_sinks_what_changed() -> None:
    every: list[l0tre.Snapshot] = []
    changed: list[l0tre.Snapshot] = []
    closed: list[bool] = []
    result = evaluated(sinks=[every.append, l0tre.Sink(changed.append, closed.append)])
    assert every[-1] == result
    assert closed == [True]
    keys = [(s.lower, s.upper, s.t, s.converged, s.finished) for s in changed]
    assert all(one != other for one, other in itertools.pairwise(keys))
    assert len(changed) <= len(every)


def test_a_sink_is_closed_when_the_caller_leaves(tmp_path: Path) -> None:
    closed: list[bool] = []
    images = torch.rand(2, 6)
    steps = l0tre.anytime(
        nn.Linear(6, 3), images, max_t=3, out=tmp_path / "run", sinks=[l0tre.Sink(print, closed.append)], **NO_ATTACK
    )
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert closed == [False]
    assert (tmp_path / "run" / "bounds.csv").is_file()


def test_tensorboard_gets_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    evaluated(sinks=[l0tre.tensorboard_sink(tmp_path)])
    (events,) = tmp_path.glob("events.*")
    assert b"l0tre/lower_mean" in events.read_bytes()


def test_mlflow_gets_metrics(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        sink = l0tre.mlflow_sink("digits", uri=uri)
    except Exception as error:
        pytest.skip(f"mlflow has no local store here: {error}")
    result = evaluated(sinks=[sink])
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.data.metrics["lower_mean"] == pytest.approx(result.lower)
    assert run.data.params["max_t"] == "2"
    assert run.info.status == "FINISHED"


def test_a_place_where_mlflow_keeps_nothing_is_an_error_for_the_user() -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI"):
        l0tre.mlflow_sink("digits", uri="nonsense://nowhere")


def test_a_bar_is_shown_on_request_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    evaluated()
    assert capsys.readouterr().err == ""
    evaluated(progress=True)
    assert "t = 2" in capsys.readouterr().err
    monkeypatch.setattr("l0tre.api.sinks.in_notebook", lambda: True)
    evaluated()
    assert "t = 2" in capsys.readouterr().err
    monkeypatch.setenv("L0TRE_PROGRESS", "0")
    evaluated()
    evaluated(progress=False)
    assert capsys.readouterr().err == ""


def test_nothing_is_lost_on_the_way() -> None:
    snapshots = [evaluated()]
    assert list(told(iter(snapshots))) == snapshots
