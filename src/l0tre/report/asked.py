"""What was asked: model, data, what may change, settings, versions, the command."""

import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from l0tre.domain import Domain
from l0tre.evaluation.accuracy import classified, counts
from l0tre.evaluation.results import Snapshot
from l0tre.names import Names, names_of
from l0tre.report import blocks
from l0tre.report.blocks import Block
from l0tre.rules import Rules

__all__ = ["all_settings", "asked", "command_facts", "question_facts"]

PACKAGES = ("l0tre", "torch", "numpy")
LISTED = 20  # columns named one by one


def asked(snapshot: Snapshot, domain: Domain | None) -> Block:
    """The question of an evaluation in a few lines."""
    return blocks.facts("asked", "What was asked", list(_asked(snapshot, domain)), closed=False, half=True)


def _asked(snapshot: Snapshot, domain: Domain | None) -> Iterator[tuple[str, str]]:
    config, unit = snapshot.config, snapshot.unit
    model, settings = config.get("model", {}), config.get("settings", {})
    if "command" in config:
        yield "command", str(config["command"])
    yield "model", _model(model)
    if model.get("reading"):
        yield "read as", str(model["reading"])
    yield "data", str(config.get("data", {}).get("name", "not named"))
    correct, total, labelled = counts(snapshot)
    yield f"{snapshot.noun}s", classified(correct, total, labelled=labelled)
    yield "may change", _may_change(unit, config.get("domain", {}).get("groups"), domain)
    yield from _rules(domain, names_of(config)[0])
    if "max_t" in settings:
        if settings.get("sample_ms"):
            yield "searched", f"random sets of {_units(settings['max_t'], unit)}, {settings['sample_ms']:g} ms each"
        else:
            yield "searched", f"all sets of up to {_units(settings['max_t'], unit)}"
    guarantee = config.get("guarantee", {})
    if guarantee:
        why = f"; why not certified: {guarantee['note']}" if guarantee.get("note") else ""
        yield "guarantee", f"{guarantee['kind']}{why}"
    if config.get("versions"):
        yield "versions", ", ".join(f"{name} {number}" for name, number in config["versions"].items())
    if "device" in config:
        yield "device", str(config["device"])


def _model(model: Mapping[str, Any]) -> str:
    shape = " x ".join(map(str, model.get("input_shape", ())))
    takes = [f"input {shape}"] if shape else []
    takes += [f"{model['classes']} classes"] if "classes" in model else []
    takes += [f"mean {model['mean']}, standard deviation {model['std']}"] if model.get("mean") is not None else []
    takes += [f"fingerprint {str(model['fingerprint'])[:12]}"] if model.get("fingerprint") else []
    return "; ".join([str(model.get("name", "not named")), *takes])


def _may_change(unit: str, groups: int | None, domain: Domain | None) -> str:
    count = f"{unit}s" if groups is None else _units(groups, unit)
    if domain is None:
        return count
    members = domain.members.flatten()
    low, high = domain.low[members], domain.high[members]
    same = bool((low == low[0]).all()) and bool((high == high[0]).all())
    return f"{count}, {f'from {float(low[0]):g} to {float(high[0]):g}' if same else 'each in a range of its own'}"


def _rules(domain: Domain | None, names: Names) -> Iterator[tuple[str, str]]:
    """Which values are held fast, listed, whole or of one direction; nothing without rules and names."""
    if domain is None:
        return
    free = set(domain.members.flatten().tolist())
    kinds: list[tuple[str, list[int]]] = []
    if names.features:
        kinds.append(("never change", [place for place in range(len(names.features)) if place not in free]))
    if isinstance(domain.rules, Rules):
        rules = domain.rules
        listed = {position for place in rules.listed.tolist() for position in domain.members[place].tolist()}
        kinds += [
            ("listed values only", sorted(listed)),
            ("whole numbers only", [place for place in rules.whole.nonzero()[:, 0].tolist() if place in free]),
            ("may only rise", [place for place in (rules.direction > 0).nonzero()[:, 0].tolist() if place in free]),
            ("may only fall", [place for place in (rules.direction < 0).nonzero()[:, 0].tolist() if place in free]),
        ]
    for kind, places in kinds:
        if places:
            rest = f" and {len(places) - LISTED} more" if len(places) > LISTED else ""
            yield kind, ", ".join(names.feature(place) for place in places[:LISTED]) + rest


def _units(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def all_settings(snapshot: Snapshot) -> Block:
    """The whole configuration, as stored."""
    config = {key: value for key, value in snapshot.config.items() if key not in ("names", "command")}
    rows = list(_flat(config))
    if snapshot.state:
        rows.append(("state of the run", snapshot.state))
    return blocks.facts("settings", "All settings", rows)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines of name and value."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def question_facts(model: Mapping[str, Any], data: str, count: int, domain: Domain) -> list[tuple[str, str]]:
    """Network, data and domain of a command without a run folder.

    Args:
        model: Its ``name``, ``input_shape``, ``classes``, ...
        data: The name of the data.
        count: Number of inputs.
        domain: What may change.
    """
    inputs = f"{data}, {_units(count, 'input')}"
    may_change = _may_change(domain.unit, domain.groups, domain)
    return [("model", _model(model)), ("data", inputs), ("may change", may_change), *_rules(domain, domain.names)]


def command_facts(arguments: Sequence[str], about: Sequence[tuple[str, str]] = ()) -> Block:
    """What a command without a run folder was asked.

    Args:
        arguments: Its words, without the name of the program.
        about: What else it was asked, by name.
    """
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    versions = ", ".join(f"{name} {number}" for name, number in found.items())
    rows = [("command", shlex.join(["l0tre", *arguments])), *about, ("versions", versions)]
    return blocks.facts("asked", "What was asked", rows, closed=False)
