"""How many input features must change before a classifier's decision can change?

A lower bound that is proved, an upper bound that is shown by a real input, for one input or a whole test set.
"""

from l0tre.api import Verdict, anytime, evaluate, resume, resume_anytime, verify
from l0tre.data import Dataset, load_data
from l0tre.domain import Domain, make_domain
from l0tre.errors import L0treError
from l0tre.model.load import load
from l0tre.model.network import Network
from l0tre.results import ImageBounds, Snapshot, Witness
from l0tre.sensitivities import Sensitivity, sensitivity

__version__ = "0.1.0"

__all__ = [
    "Dataset",
    "Domain",
    "ImageBounds",
    "L0treError",
    "Network",
    "Sensitivity",
    "Snapshot",
    "Verdict",
    "Witness",
    "anytime",
    "evaluate",
    "load",
    "load_data",
    "make_domain",
    "resume",
    "resume_anytime",
    "sensitivity",
    "verify",
]
