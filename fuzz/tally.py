"""What a run of the fuzzer met, counted."""

import re
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass
class Tally:
    """Counts of a run.

    Attributes:
        cases: All cases.
        guarantees: Cases that were put to the test, by guarantee.
        sources: Likewise by kind of source.
        ideas: Likewise by idea.
        operations: Operations of l0tre's graphs, likewise.
        operators: Operators in the files that were loaded: of ONNX, of torch.
        parts: Parts of the search space that were proved and looked at.
        flips: Known flips that proofs were compared with.
        probes: Small parts around flips that were bounded.
        clustered: Levels that can be proved by clusters of pixels.
        proved: Lower bounds above 0, by guarantee.
        certificates: What became of certificates.
        refused: Networks that l0tre did not take, by reason.
        skipped: Cases without a test, by reason.
        stopped: Runs that took too long.
    """

    cases: int = 0
    guarantees: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    ideas: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    parts: int = 0
    flips: int = 0
    probes: int = 0
    clustered: int = 0
    proved: Counter[str] = field(default_factory=Counter)
    certificates: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    stopped: int = 0

    def refuse(self, error: Exception) -> None:
        """Count a network that was refused; names and numbers in the reason do not matter."""
        reason = re.sub(r"/\S+/", "", str(error))
        reason = re.sub(r"\([^()]*\)", "", reason)
        self.refused[re.sub(r"[-+]?\d[\d.e+-]*", "#", reason)[:110]] += 1

    def lines(self) -> list[str]:
        """The summary."""
        tested = sum(self.guarantees.values())
        result = [
            f"{self.cases} cases, {tested} tested: {_words(self.guarantees)}",
            f"compared: {self.flips} flips with {self.parts} proved parts, {self.probes} probes around flips, "
            f"{self.clustered} levels by clusters; "
            f"lower bounds above 0: {_words(self.proved)}; certificates: {_words(self.certificates)}; "
            f"{self.stopped} runs stopped early",
            f"sources: {_words(self.sources)}",
            f"ideas: {_words(self.ideas)}",
            f"operations: {_words(self.operations)}",
            f"operators in files: {_words(self.operators)}",
            f"skipped: {_words(self.skipped)}",
        ]
        return [*result, *(f"refused {number} x: {reason}" for reason, number in self.refused.most_common())]


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"
