"""Attacks of other libraries behind one signature, to compare with."""

from collections.abc import Mapping
from types import MappingProxyType

from l0tre.adapters.peers import advlib, art, foolbox, own, sigma_zero, torchattacks
from l0tre.adapters.peers.peer import Peer

__all__ = ["PEERS", "Peer"]

STEPS = "steps = budget / 2: a forward and a backward pass each"

PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "sigma-zero": Peer(
            "adv-lib",
            "feature",
            True,
            STEPS,
            "gradient descent on a smooth L0 with an adaptive threshold",
            advlib.sigma_zero,
            advlib.load,
        ),
        "fmn": Peer(
            "adv-lib",
            "feature",
            True,
            STEPS,
            "fast minimum norm, L0: projections on a ball of adaptive size",
            advlib.fmn,
            advlib.load,
        ),
        "pdpgd": Peer(
            "adv-lib",
            "feature",
            True,
            STEPS,
            "primal-dual proximal gradient descent, L0 by the L2/3 operator",
            advlib.pdpgd,
            advlib.load,
        ),
        "vfga": Peer(
            "adv-lib",
            "feature",
            True,
            "steps = budget / 22; ends at the first success, often far below the budget",
            "voting folded Gaussian attack: one value a step, by gradient and sampling",
            advlib.vfga,
            advlib.load,
        ),
        "jsma": Peer(
            "ART",
            "feature",
            True,
            "3 queries for two values, split over up to 9 targets and both directions",
            "Jacobian saliency map, for each target class; the best is kept",
            art.jsma,
            art.load,
        ),
        "cw-l0": Peer(
            "ART",
            "feature",
            True,
            "no knob: one value is fixed a round, with about 40 queries a round",
            "Carlini and Wagner, L0: an L2 attack on fewer and fewer values",
            art.carlini_l0,
            art.load,
        ),
        "fmn-foolbox": Peer(
            "foolbox",
            "feature",
            True,
            STEPS,
            "fast minimum norm, L0, as foolbox has it",
            foolbox.fmn,
            foolbox.load,
        ),
        "bb-l0": Peer(
            "foolbox",
            "feature",
            True,
            "steps = (budget - 110) / 2 after a start from noise",
            "Brendel and Bethge, L0: along the boundary (needs numba)",
            foolbox.brendel_bethge,
            foolbox.load_with_numba,
            foolbox.compile_optimiser,
        ),
        "one-pixel": Peer(
            "torchattacks",
            "pixel",
            False,
            "an equal share for each of 1, 2, 4, ... 32 pixels; ends at the first success",
            "differential evolution over places and colours of a given number of pixels",
            torchattacks.one_pixel,
            torchattacks.load,
        ),
        "pixle": Peer(
            "torchattacks",
            "pixel",
            False,
            "restarts = budget / 20; ends at the first success",
            "random search that moves single pixels of the image",
            torchattacks.pixle,
            torchattacks.load,
        ),
        "sparsefool": Peer(
            "torchattacks",
            "feature",
            True,
            "steps = budget / (24 classes + 24) for each of three overshoots, until a success; DeepFool has its own",
            "sparse steps to the boundary that DeepFool linearises",
            torchattacks.sparsefool,
            torchattacks.load,
        ),
        "sigma-zero-own": Peer(
            "own",
            "feature",
            True,
            STEPS,
            "sigma-zero (own implementation), for machines without adv-lib",
            sigma_zero.sigma_zero,
            lambda: None,
        ),
        "sparse-rs": Peer(
            "own",
            "pixel",
            False,
            "forward passes = budget, a quarter for each run at one k",
            "Sparse-RS (own implementation): random search over k pixels, at decreasing k",
            own.sparse_rs,
            lambda: None,
        ),
        "l0tre-paper": Peer(
            "own",
            "pixel",
            False,
            "no knob: each pixel at each corner colour once, then as many accumulations, then tightening",
            "the L0-TRE paper (own implementation): one static ranking, accumulation, tightening",
            own.paper,
            lambda: None,
        ),
    }
)
