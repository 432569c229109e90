"""How many input features must change before a classifier's decision can change?

A lower bound that is proved, an upper bound that is shown by a real input, for one input or a whole test set.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from l0tre import openmp as _openmp  # noqa: F401  # before anything loads torch

if TYPE_CHECKING:
    from l0tre.api.attack import attack, attack_details
    from l0tre.api.check import CheckResult, check
    from l0tre.api.check_run import RunCheck, check_run
    from l0tre.api.compare import Comparison, compare
    from l0tre.api.coverage import measure_coverage
    from l0tre.api.evaluate import anytime, evaluate
    from l0tre.api.instances import export_vnnlib
    from l0tre.api.load import load
    from l0tre.api.resume import resume, resume_anytime
    from l0tre.api.runs import load_run
    from l0tre.api.saliency import saliency, saliency_map
    from l0tre.api.sensitivity import Sensitivity, sensitivity
    from l0tre.api.sinks import Sink, mlflow_sink, tensorboard_sink
    from l0tre.api.tables import table_domain
    from l0tre.api.testgen import generate_tests
    from l0tre.api.verify import Verdict, verify
    from l0tre.attacks.attacked import Attacked
    from l0tre.certify.checker.certificate import read_certificate
    from l0tre.coverage.criteria import CoverageFigure
    from l0tre.coverage.measure import Coverage
    from l0tre.data import Dataset, load_data, select
    from l0tre.domain import Domain, make_domain, restrict
    from l0tre.errors import L0treError, L0treWarning
    from l0tre.evaluation.results import ImageBounds, Result, Snapshot, Witness
    from l0tre.maps.saliency_map import SaliencyMap
    from l0tre.model.network import Network
    from l0tre.scheduling.session import Cluster
    from l0tre.testgen.suite import Suite
    from l0tre.tuning import PerDevice, Tuning

__version__ = "0.1.0"

__all__ = [
    "Attacked",
    "CheckResult",
    "Cluster",
    "Comparison",
    "Coverage",
    "CoverageFigure",
    "Dataset",
    "Domain",
    "ImageBounds",
    "L0treError",
    "L0treWarning",
    "Network",
    "PerDevice",
    "Result",
    "RunCheck",
    "SaliencyMap",
    "Sensitivity",
    "Sink",
    "Snapshot",
    "Suite",
    "Tuning",
    "Verdict",
    "Witness",
    "anytime",
    "attack",
    "attack_details",
    "check",
    "check_run",
    "compare",
    "evaluate",
    "export_vnnlib",
    "generate_tests",
    "load",
    "load_data",
    "load_run",
    "make_domain",
    "measure_coverage",
    "mlflow_sink",
    "read_certificate",
    "restrict",
    "resume",
    "resume_anytime",
    "saliency",
    "saliency_map",
    "select",
    "sensitivity",
    "table_domain",
    "tensorboard_sink",
    "verify",
]

# Imported when first asked for, so that the command line can set torch up before it is loaded.
_HOMES = {
    "l0tre.api.evaluate": ("anytime", "evaluate"),
    "l0tre.api.resume": ("resume", "resume_anytime"),
    "l0tre.api.attack": ("attack", "attack_details"),
    "l0tre.attacks.attacked": ("Attacked",),
    "l0tre.certify.checker.certificate": ("read_certificate",),
    "l0tre.api.check": ("CheckResult", "check"),
    "l0tre.api.check_run": ("RunCheck", "check_run"),
    "l0tre.api.instances": ("export_vnnlib",),
    "l0tre.api.compare": ("Comparison", "compare"),
    "l0tre.data": ("Dataset", "load_data", "select"),
    "l0tre.api.tables": ("table_domain",),
    "l0tre.domain": ("Domain", "make_domain", "restrict"),
    "l0tre.errors": ("L0treError", "L0treWarning"),
    "l0tre.api.coverage": ("measure_coverage",),
    "l0tre.api.testgen": ("generate_tests",),
    "l0tre.coverage.criteria": ("CoverageFigure",),
    "l0tre.coverage.measure": ("Coverage",),
    "l0tre.testgen.suite": ("Suite",),
    "l0tre.api.load": ("load",),
    "l0tre.api.runs": ("load_run",),
    "l0tre.model.network": ("Network",),
    "l0tre.evaluation.results": ("ImageBounds", "Result", "Snapshot", "Witness"),
    "l0tre.api.saliency": ("saliency", "saliency_map"),
    "l0tre.maps.saliency_map": ("SaliencyMap",),
    "l0tre.api.sensitivity": ("Sensitivity", "sensitivity"),
    "l0tre.api.sinks": ("Sink", "mlflow_sink", "tensorboard_sink"),
    "l0tre.api.verify": ("Verdict", "verify"),
    "l0tre.scheduling.session": ("Cluster",),
    "l0tre.tuning": ("PerDevice", "Tuning"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
