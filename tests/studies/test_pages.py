"""Pages of studies that have no runs."""

import torch
from torch import nn

import l0tre
from l0tre.figures.maps import Panel
from l0tre.report.page import page_html
from l0tre.studies.pages import maps_page, suites_page


def test_suites_of_several_networks_have_a_chart_each() -> None:
    points = {"l0": 0, "coverage": 0.5, "at_most": 0.5, "random": None}
    curve = [points, {**points, "l0": 2, "coverage": 0.9, "at_most": 1.0}]
    rows = [{"network": name, "neurons": 1200, "seeds": 1, "coverage %": 90.0, "paper %": None} for name in "ab"]
    suites = [{"seed": 1234, "network": "a", "exact_distances": 7, "complete": False}]
    document = suites_page("Study", {"a": curve, "b": curve}, rows, [{"layer": "relu1", "open": 3}], suites, ["note"])
    told, drawn, networks, _, every = document.blocks
    assert told["text"].startswith("a: 90.00 % of 1,200 neurons are covered, the mean over 1 seed. b: ")
    assert [variant["name"] for variant in drawn["variants"]] == ["a", "b"]
    assert [one["name"] for one in drawn["variants"][0]["series"]] == ["suite", "proved limit"]
    assert drawn["variants"][0]["series"][0]["values"] == [0.5, 0.9]
    assert networks["rows"][0] == ["a", 1200, 1, 90.0, None]
    assert every["heads"] == [
        ["seed", "index"],
        ["network", "text"],
        ["exact distances", "number"],
        ["complete", "text"],
    ]
    assert every["rows"] == [[1234, "a", 7, "no"]]
    assert page_html(document).startswith("<!DOCTYPE html>")


def test_maps_are_shown_with_what_the_attack_changed() -> None:
    torch.manual_seed(0)
    network, image = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(1, 4, 4)
    found = l0tre.saliency_map(network, image)
    changed = image.clone()
    changed[0, 1, 2] = 1.0
    panels = {5: [Panel("net", image, found, (changed, "1 changed pixel: cat"))], 7: [Panel("net", image, found)]}
    drop = float(found.drop.max())
    rows = [{"network": "net", "image": index, "largest drop": drop} for index in panels]
    means = [
        {"network": "net", "method": method, "replaced by": "black", "drop at 1": fall, "drop at 5": 2 * fall}
        for method, fall in (("ours", 1.0), ("theirs", 0.5))
    ]
    document = maps_page("Study", rows, means, panels, (1, 5, 20), "photographs")
    assert document.blocks[0]["text"].startswith("2 maps of 2 images of photographs")
    (variant,) = document.blocks[1]["variants"]
    assert variant["x"] == [1, 5]
    assert [(one["name"], one["values"]) for one in variant["series"]] == [("ours", [1.0, 2.0]), ("theirs", [0.5, 1.0])]
    assert document.gallery is not None
    first, second = document.gallery.result["images"]
    assert (first["becomes"], first["distance"], first["witness"]["positions"]) == ("cat", 1, [6])
    assert second["witness"] is None
    assert max(document.gallery.extras[1]["map"]) == float(f"{drop:.4g}")
    assert page_html(document).startswith("<!DOCTYPE html>")
