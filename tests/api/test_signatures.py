"""Public functions say every argument that they take."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
import torch

import l0tre
from l0tre import testing
from l0tre.adapters.options import AttackOptions
from l0tre.attacks.auto import METHODS
from l0tre.defaults import METHODS as METHOD_NAMES
from l0tre.defaults import Method
from tests.tools import plain_network, tiny_module

FUNCTIONS: list[Callable[..., Any]] = [
    *(getattr(l0tre, name) for name in l0tre.__all__ if inspect.isfunction(getattr(l0tre, name))),
    testing.assert_coverage,
    testing.assert_robust,
]
MISSPELT: dict[str, dict[str, Any]] = {
    "evaluate": {"sampel_ms": 3},
    "anytime": {"attack": 5},
    "resume": {"budget": 1},
    "resume_anytime": {"timebudget": 1},
    "verify": {"radius": 1, "sample": 3},
    "attack": {"memory": 5},
    "attack_details": {"round": "8bit"},
    "compare": {"maxt": 1},
    "sensitivity": {"epsilom": 0.5},
    "check": {"memory": 5},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_argument_has_a_name_and_a_type(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert {*signature.parameters, "return"} <= set(get_type_hints(function))


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_option_is_named_before_any_work(name: str) -> None:
    wrong = list(MISSPELT[name])[-1]
    with pytest.raises(TypeError, match=wrong):
        getattr(l0tre, name)(None, None, **MISSPELT[name])


@pytest.mark.parametrize(("one", "other"), [("evaluate", "anytime"), ("attack", "attack_details")])
def test_two_functions_for_one_purpose_take_the_same(one: str, other: str) -> None:
    first, second = (inspect.signature(getattr(l0tre, name)).parameters for name in (one, other))
    assert list(first) == list(second)
    for name in set(first) - {"stop"}:  # whose defaults are two functions
        assert (first[name].default, first[name].annotation) == (second[name].default, second[name].annotation)


@pytest.mark.parametrize("name", ["compare", "verify"])
def test_what_functions_share_has_the_same_type_and_default(name: str) -> None:
    known, own = (inspect.signature(getattr(l0tre, f)).parameters for f in ("evaluate", name))
    for shared in set(known) & set(own) - {"stop", "attack_queries"}:
        assert own[shared].annotation == known[shared].annotation
        assert own[shared].default == known[shared].default


@pytest.mark.parametrize(("own", "known"), [("assert_robust", "evaluate"), ("assert_coverage", "measure_coverage")])
def test_assertions_take_what_they_hand_on_with_the_same_meaning(own: str, known: str) -> None:
    first, second = (inspect.signature(f).parameters for f in (getattr(testing, own), getattr(l0tre, known)))
    shared = set(first) & set(second)
    assert len(shared) > 8
    for name in shared:
        assert (first[name].default, first[name].annotation) == (second[name].default, second[name].annotation)


def test_adapters_take_the_options_of_the_attack() -> None:
    own, known = get_type_hints(AttackOptions), get_type_hints(l0tre.attack_details)
    assert {name: known[name] for name in own} == own
    of_a_call = {"network", "images", "labels", "targeted", "lower", "device", "cluster", "return"}
    assert set(known) - set(own) == of_a_call


def test_the_methods_that_can_be_named_are_those_that_there_are() -> None:
    assert tuple(METHODS) == METHOD_NAMES
    assert get_args(Method) == ("auto", *METHOD_NAMES)


def test_settings_are_stored_under_the_names_of_the_arguments() -> None:
    module, shape = tiny_module("dense", 0)
    result = l0tre.evaluate(plain_network(module, shape), torch.rand(1, *shape), max_t=1, sample_ms=1.0)
    assert set(result.config["settings"]) <= set(inspect.signature(l0tre.evaluate).parameters)
    assert result.config["settings"]["sample_ms"] == 1.0
