"""Case study five: saliency maps, and what one changed pixel can do to networks for photographs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l0tre.api.attack import attack_details
from l0tre.api.clusters import ClusterChoice
from l0tre.api.drawings import Drawing, begin_map
from l0tre.api.inputs import agree
from l0tre.api.spread_maps import draw_all
from l0tre.data import Dataset, load_data, select
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from l0tre.figures.canvas import cannot_draw
from l0tre.figures.maps import Panel, caption, draw_maps
from l0tre.figures.tables import Rows, markdown, write_csv, write_json, write_text
from l0tre.maps.files import read_map
from l0tre.maps.quality import overlap, pixel_order, removed, restored
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.together import lower_together, ranked
from l0tre.model.load import Numbers
from l0tre.model.network import Network
from l0tre.studies.attributions import METHODS, attribute, captum_missing
from l0tre.studies.pages import maps_page, write_page
from l0tre.studies.summary import Summary

__all__ = ["COUNTS", "MapPlan", "carry_out_maps", "measure", "quality_rows"]

COUNTS = (1, 5, 20, 100)  # pixels removed
OURS, TOGETHER = "l0tre", "l0tre, one after the other"
TOLD_SECONDS = 15.0  # between two lines about a map
CHOSEN = 20  # pixels that are chosen one after the other; a map's own order follows


@dataclass(frozen=True)
class MapPlan:
    """What is drawn and measured.

    Attributes:
        networks: What :func:`l0tre.load` takes.
        data: What :func:`l0tre.load_data` takes.
        images: How many of it.
        coarse: Whether maps end with the strongest pixels.
        epsilon: Spacing of colours; ``None`` for the corners.
        queries: Of the attack on each image; 0 for none.
        compared: Whether captum's methods are measured, too.
        mean: Of the networks' inputs, as for :func:`l0tre.load`.
        std: Likewise.
        seed: Of the choice of images and of all chance.
        device: Where to compute.
        data_dir: Where data sets known by name are.
        time_budget: Seconds for each map.
        classes: Their names; default those that the data or the network has.
    """

    networks: Sequence[str]
    data: str
    images: int = 20
    coarse: bool = False
    epsilon: float | None = None
    queries: int = 2000
    compared: bool = True
    mean: Numbers | None = None
    std: Numbers | None = None
    seed: int = 0
    device: str = "auto"
    data_dir: Path | None = None
    time_budget: float | None = None
    classes: tuple[str, ...] = ()


def carry_out_maps(
    plan: MapPlan,
    out: Path,
    *,
    cluster: ClusterChoice = None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Draw all maps, attack all images, measure, and write tables and pictures; finished maps are not drawn again.

    Args:
        plan: What is to be done.
        out: Folder of the study.
        cluster: Who draws the maps, as for :func:`l0tre.saliency`; the rest is done here.
        stop: Asked before every batch; what there is by then is written.
        tell: Takes a line for every map.

    Returns:
        The summary.
    """
    names = [Path(network).stem for network in plan.networks]
    if len(set(names)) < len(names):
        raise ConfigError(f"two of the networks {', '.join(names)} have the same name: rename one of the files")
    missing = captum_missing() if plan.compared else "not asked for"
    rows: list[dict[str, Any]] = []
    measures: list[dict[str, Any]] = []
    panels: dict[int, list[Panel]] = {}
    for name, source in zip(names, plan.networks, strict=True):
        network, data = agree(
            source,
            lambda shape: load_data(plan.data, input_shape=shape, data_dir=plan.data_dir, resize=shape is not None),
            device=plan.device,
            mean=plan.mean,
            std=plan.std,
        )
        named = replace(data.names, classes=plan.classes or data.names.classes or network.names.classes)
        data = replace(data, names=named)
        chosen = _correct(network, select(data, limit=4 * plan.images, shuffle=True, seed=plan.seed), plan.images)
        files = [out / "maps" / f"{name}-{index}.npz" for index in chosen.indices]
        if cluster is not None:
            drawings = [_begun(plan, network, *each, chosen) for each in zip(chosen.images, files, strict=True)]
            _draw_together(plan, drawings, files, cluster, stop, tell)
            del drawings
        for place, index in enumerate(chosen.indices):
            if stop():
                break
            tell(f"{name}, image {index}")
            image, file = chosen.images[place], files[place]
            drawing = _begun(plan, network, image, file, chosen)
            if cluster is None:
                _draw(plan, drawing, file, stop, tell)
            found = read_map(file)[0]
            changed = _attacked(plan, network, chosen, place, stop)
            words = "" if changed is None else caption(changed[1], found.group, chosen.names.label(changed[2]))
            above = None if changed is None else (changed[0], words)
            panels.setdefault(index, []).append(Panel(name, image, found, above))
            rows.append(_row(name, index, found, changed, chosen))
            if stop():
                break
            measures += _measured(drawing, found, changed, not missing, name, index)
    return _written(out, plan, rows, measures, panels, missing)


def _correct(network: Network, data: Dataset, count: int) -> Dataset:
    """The first images that are classified correctly; all count where there are no labels."""
    if data.labels is None:
        return select(data, limit=count)
    right = network.scores(data.images).argmax(1).cpu() == data.labels
    return select(data, indices=right.nonzero()[:count, 0].tolist())


def _begun(plan: MapPlan, network: Network, image: Tensor, file: Path, data: Dataset) -> Drawing:
    """A map from its file, or one to begin with."""
    kept = file if file.exists() else None
    return begin_map(network, image, classes=data.names.classes, epsilon=plan.epsilon, resume=kept)


def _is_drawn(plan: MapPlan, drawing: Drawing) -> bool:
    return bool(drawing.state.measured.all()) or (plan.coarse and bool(drawing.state.found))


def _draw(plan: MapPlan, drawing: Drawing, file: Path, stop: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Draw a map as far as it goes, and write it."""
    if _is_drawn(plan, drawing):
        return
    told = time.monotonic()
    for step in drawing.steps(coarse=plan.coarse, seed=plan.seed, time_budget=plan.time_budget, stop=stop):
        if time.monotonic() - told >= TOLD_SECONDS:
            told = time.monotonic()
            tell(f"{file.stem}: {step.share:.0%}, {step.done:,} of {step.total:,} measured")
    drawing.write(file)


def _draw_together(
    plan: MapPlan,
    drawings: Sequence[Drawing],
    files: Sequence[Path],
    cluster: ClusterChoice,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Have workers draw the maps that are not drawn yet, and write each when it is."""
    left = [place for place, drawing in enumerate(drawings) if not _is_drawn(plan, drawing)]
    if not left:
        return
    choices: dict[str, Any] = {"coarse": plan.coarse, "seed": plan.seed, "time_budget": plan.time_budget}
    begun = set[int]()
    for number, step in draw_all([drawings[place] for place in left], cluster, stop=stop, **choices):
        begun.add(number)
        if step.stage == "done":
            tell(f"{files[left[number]].stem}: drawn")
            drawings[left[number]].write(files[left[number]])
    for number in begun:  # those that were stopped
        drawings[left[number]].write(files[left[number]])


def _attacked(
    plan: MapPlan, network: Network, data: Dataset, place: int, stop: Callable[[], bool]
) -> tuple[Tensor, int, int] | None:
    """A changed image, how many pixels that took, and what it became; ``None`` for none."""
    if not plan.queries:
        return None
    one, domain = data.images[place][None], make_domain(network.input_shape)
    found = attack_details(network, one, budget=plan.queries, seed=plan.seed, domain=domain, stop=stop)
    if not bool(found.changed[0]):
        return None
    return found.adversarial[0].cpu(), int(found.distance[0]), int(found.decisions[0])


def _row(
    name: str, index: int, found: SaliencyMap, changed: tuple[Tensor, int, int] | None, data: Dataset
) -> dict[str, Any]:
    return {
        "network": name,
        "image": index,
        "score of": found.observed,
        "score": found.base,
        "largest drop": float(found.drop[found.measured].max()),
        "drop of the 100th pixel": float(found.drop.sort(descending=True).values[min(99, len(found.drop) - 1)]),
        "measured": found.share,
        "upper bound": None if changed is None else changed[1],
        "becomes": None if changed is None else data.names.label(changed[2]),
        "seconds of the map": found.seconds,
        "evaluations": found.evaluations,
        "in half precision": found.ranked,
    }


def _measured(
    drawing: Drawing,
    found: SaliencyMap,
    changed: tuple[Tensor, int, int] | None,
    compared: bool,
    name: str,
    index: int,
) -> list[dict[str, Any]]:
    """One row for each method and way to remove pixels."""
    network, image = drawing.network, drawing.image
    target = int(network.scores(image[None]).argmax())
    shown = [(OURS, found.attribution(), found.seconds)]
    if compared:
        shown += [(method, *attribute(network, image, target, method)) for method in METHODS]
    ways = {"worst colours": _worst(found, image), "black": torch.zeros_like(image), "mean": _mean(image)}
    asked = [
        (method, way, values, attribution, cost) for method, attribution, cost in shown for way, values in ways.items()
    ]
    asked.insert(1, (TOGETHER, "worst colours", *_together(drawing, found, ways["worst colours"])))
    rows = []
    for method, way, values, attribution, seconds in asked:
        row = measure(network, image, target, attribution, values)
        near = float("nan") if changed is None else overlap(pixel_order(attribution), changed[0] != image)
        about: dict[str, Any] = {"network": name, "image": index, "method": method, "replaced by": way}
        rows.append({**about, **row, "overlap with the attack": near, "seconds": seconds})
    return rows


def _together(drawing: Drawing, found: SaliencyMap, worst: Tensor) -> tuple[Tensor, Tensor, float]:
    """The worst colours, an attribution that has pixels chosen one after the other before all others, and seconds."""
    began = time.monotonic()
    chosen = lower_together(drawing.perturber, drawing.state, CHOSEN)
    values = worst.flatten().clone()
    values[found.members[chosen.groups].flatten()] = chosen.colours.flatten()
    seconds = found.seconds + time.monotonic() - began
    return values.reshape(found.shape), ranked(found, chosen), seconds


def measure(network: Network, image: Tensor, target: int, attribution: Tensor, values: Tensor) -> dict[str, float]:
    """How far the score falls when the strongest pixels are replaced, and how it returns when they alone are kept.

    Args:
        network: The classifier.
        image: float32 ``shape``.
        target: The class.
        attribution: float32 ``shape``.
        values: float32 ``shape``, what replaces each pixel.

    Returns:
        ``drop at k`` in units of the score, ``changed at k`` (1 if the decision is another one), and ``insertion``, the
        mean probability of the class while the pixels of a quarter of the image are put back.
    """

    def score(x: Tensor) -> Tensor:
        return network.scores(x)[:, target].cpu()

    def decided(x: Tensor) -> Tensor:
        return (network.scores(x).argmax(1) != target).float().cpu()

    def probability(x: Tensor) -> Tensor:
        return network.scores(x).softmax(1)[:, target].cpu()

    order = pixel_order(attribution)
    counts = [count for count in COUNTS if count <= len(order)]
    base = float(score(image[None])[0])
    drops = base - removed(score, image, order, values, counts)
    flips = removed(decided, image, order, values, counts)
    some = [max(1, len(order) * step // 64) for step in range(1, 17)]
    back = restored(probability, image, order, values, some)
    return {
        **{f"drop at {count}": float(drop) for count, drop in zip(counts, drops, strict=True)},
        **{f"changed at {count}": float(flip) for count, flip in zip(counts, flips, strict=True)},
        "insertion": float(back.mean()),
    }


def _worst(found: SaliencyMap, image: Tensor) -> Tensor:
    """Every pixel at its worst colour; where that was not measured, at the one that is the worst one most often."""
    flat, colours = image.flatten().clone(), found.colours.clone()
    known = found.colours[found.strongest(100)]
    kinds, which = known.unique(dim=0, return_inverse=True)
    colours[~found.measured] = kinds[which.bincount().argmax()]
    flat[found.members.flatten()] = colours.flatten()
    return flat.reshape(image.shape)


def _mean(image: Tensor) -> Tensor:
    if image.ndim < 3:
        return torch.full_like(image, float(image.mean()))
    return image.mean((1, 2), keepdim=True).expand_as(image)


def _written(
    out: Path,
    plan: MapPlan,
    rows: list[dict[str, Any]],
    measures: list[dict[str, Any]],
    panels: dict[int, list[Panel]],
    missing: str,
) -> Summary:
    """Tables, pictures and the summary."""
    out.mkdir(parents=True, exist_ok=True)
    files = [write_csv(out / "maps.csv", rows), write_csv(out / "quality.csv", measures)]
    cannot = cannot_draw()
    if not cannot:
        files += [draw_maps(out / f"image-{index}.png", shown) for index, shown in panels.items()]
    means = quality_rows(measures)
    title = "Case study five: saliency maps"
    files += write_page(out, lambda: maps_page(title, rows, means, panels, COUNTS, plan.data))
    parts = [f"# {title}\n", f"Data: {plan.data}; colours: {_colours(plan)}.\n", "## Maps\n"]
    parts += [markdown(rows), "\n## Quality, means over all images\n", markdown(means)]
    if missing:
        parts.append(f"\nCaptum's methods were left out: {missing}.")
    text = "\n".join(parts) + "\n"
    facts = {"maps": rows, "quality": means, "captum": missing or "used", "written": time.strftime("%Y-%m-%d")}
    files = [write_text(out / "summary.md", text), write_json(out / "summary.json", facts), *files]
    return Summary(text, _brief(rows, means), facts, tuple(files), cannot, True)


def _brief(rows: Rows, means: Rows) -> str:
    """The tables with so few columns that a terminal of 80 shows them."""
    maps = ("image", "largest drop", "measured", "upper bound", "becomes", "seconds of the map")
    quality = {
        "method": "method",
        "replaced by": "replaced by",
        **{f"drop at {count}": f"{count} px" for count in COUNTS},
        "overlap with the attack": "in attack",
    }
    parts = ["# Case study five: saliency maps"]
    for name in dict.fromkeys(row["network"] for row in rows):
        mine = [{column: row[column] for column in maps} for row in rows if row["network"] == name]
        better = [
            {short: row.get(column) for column, short in quality.items()} for row in means if row["network"] == name
        ]
        parts += [f"## {name}: maps", markdown(mine), f"## {name}: drop of the score by the strongest pixels, means"]
        parts.append(markdown(better))
    return "\n\n".join(parts)


def _colours(plan: MapPlan) -> str:
    return "darkest and brightest of each channel" if plan.epsilon is None else f"a grid, {plan.epsilon:g} apart"


def quality_rows(measures: Rows) -> list[dict[str, Any]]:
    """Means over the images of one network, method and way; images without an adversarial one have no overlap."""
    keys = ("network", "method", "replaced by")
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in measures:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    result = []
    for key, some in groups.items():
        numbers = [name for name in some[0] if name not in (*keys, "image")]
        means = {}
        for name in numbers:
            known = [row[name] for row in some if row[name] == row[name]]
            means[name] = sum(known) / len(known) if known else None
        result.append({**dict(zip(keys, key, strict=True)), "images": len(some), **means})
    return result
