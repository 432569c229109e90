import time

import pytest
import torch

import l0tre
from l0tre.domain import make_domain
from l0tre.evaluation.forecast import Forecast, duration, level_costs
from tests.tools import plain_network, tiny_module


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (12, "12 s"), (600, "10 min"), (3 * 3600, "3 h"), (5 * 86400, "5 days"), (1e12, "31,710 years")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_long_level_is_told_once() -> None:
    long = Forecast(1, 2, 400_000, "pixel", began=time.monotonic() - 10)
    text = long.sentence(0.001)
    assert "400,000 grid points for 2 images" in text
    assert "3 h here" in text
    assert "l0tre attack" in text
    assert long.sentence(0.002) == ""
    short = Forecast(1, 1, 100, "pixel", began=time.monotonic() - 10)
    assert short.sentence(0.5) == ""
    early = Forecast(1, 1, 100, "pixel")
    assert early.sentence(0.0001) == ""
    assert not early.said


def test_a_level_of_forward_passes_is_told_before_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.006 * len(x))
        return torch.stack([x.sum(1), 90 - x.sum(1)], 1)

    result = l0tre.evaluate(slow, torch.rand(1, 2100), max_t=1, time_budget=0.5, attack_queries=0)
    assert not result.finished
    said = [text for text in caplog.messages if "level t = 1" in text]
    assert len(said) == 1
    assert "about 10,500 forward passes for 1 input, " in said[0]
    assert " min here" in said[0]


def test_a_long_proof_is_told_once() -> None:
    pace = Forecast(2, 1, 19_110, "pixel", proof=True, began=time.monotonic() - 10)
    text = pace.sentence(0.001)
    assert "19,110 sets of pixels to prove for 1 image, 3 h here at the pace so far" in text
    assert pace.sentence(0.002) == ""
    stuck = Forecast(2, 1, 19_110, "pixel", proof=True, began=time.monotonic() - 11)
    assert "nothing proved after 11 s" in stuck.sentence(0.0)
    young = Forecast(2, 1, 19_110, "pixel", proof=True, began=time.monotonic() - 3)
    assert young.sentence(0.0) == ""


def test_resumed_levels_count_from_where_they_go_on() -> None:
    resumed = Forecast(1, 1, 100, "pixel", began=time.monotonic() - 10, at=0.5)
    assert "1 h here" in resumed.sentence(0.501)  # 0.499 of the level at 0.001 in 10 s


def test_costs_of_levels() -> None:
    module, shape = tiny_module("dense", 0)
    costs = level_costs(plain_network(module, shape), make_domain(shape), 5, 1.0)
    assert [(cost["t"], cost["sets"], cost["points"]) for cost in costs] == [(1, 5, 25), (2, 10, 250), (3, 10, 1250)]
    assert costs[2]["seconds"] == pytest.approx(50 * costs[0]["seconds"])
    part = level_costs(plain_network(module, shape), make_domain(shape), 5, 1e6, (1,))
    assert part[1]["seconds"] > 1e4 * part[0]["seconds"] * part[1]["points"] / part[0]["points"]
    assert len(level_costs(plain_network(module, shape), make_domain(shape, mask=torch.arange(5) < 2), 5, 1.0)) == 2
