"""How many input features must change before a classifier's decision can change?

A lower bound that is proved, an upper bound that is shown by a real input, for one input or a whole test set.
"""

from l0tre.api import anytime, evaluate, resume, resume_anytime
from l0tre.attacks.api import attack, attack_details
from l0tre.attacks.results import Attacked
from l0tre.certify.certificate import read_certificate
from l0tre.certify.check import CheckResult, check
from l0tre.comparison import Comparison, compare
from l0tre.data import Dataset, load_data
from l0tre.domain import Domain, make_domain
from l0tre.errors import L0treError
from l0tre.model.load import load
from l0tre.model.network import Network
from l0tre.results import ImageBounds, Snapshot, Witness
from l0tre.sensitivities import Sensitivity, sensitivity
from l0tre.verification import Verdict, verify

__version__ = "0.1.0"

__all__ = [
    "Attacked",
    "CheckResult",
    "Comparison",
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
    "attack",
    "attack_details",
    "check",
    "compare",
    "evaluate",
    "load",
    "load_data",
    "make_domain",
    "read_certificate",
    "resume",
    "resume_anytime",
    "sensitivity",
    "verify",
]
