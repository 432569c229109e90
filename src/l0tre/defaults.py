"""What options take and begin with, for signatures and for the command line's help, which must not wait for torch."""

from typing import Literal

__all__ = [
    "ATTACK_QUERIES",
    "BUDGET",
    "LOAD_SECONDS",
    "MAX_L0",
    "METHODS",
    "PEER_BUDGET",
    "PROOFS",
    "Method",
    "Rounding",
]

ATTACK_QUERIES = 1000  # of the attack on each image in an evaluation: about what ranking single pixels costs
BUDGET = 5000  # queries of an attack by itself, for each image
PEER_BUDGET = 2000  # likewise, where attacks of other libraries are compared
MAX_L0 = 100  # changed groups of a generated test
PROOFS = 8  # changed groups up to which neurons are proved out of reach; where nothing is proved it ends earlier
LOAD_SECONDS = 600.0  # until a model that is not loaded counts as one that never will be

Method = Literal["auto", "greedy", "linear", "saliency", "local", "rank", "values", "search", "exact"]
Rounding = Literal["none", "8bit"]
# All but auto.
METHODS: tuple[Method, ...] = ("greedy", "linear", "saliency", "local", "rank", "values", "search", "exact")
