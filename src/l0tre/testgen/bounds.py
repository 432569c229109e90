"""Proofs that no test is near: every neuron's range over all inputs with so many changed groups, all at once.

The ranges are those of the certified prover (``certify.relax``), over the node of all sets of a size, or over the whole
domain. What a range leaves out no input attains, whatever real values its groups take.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, Nodes, root
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.certify.relax.bounds import input_ranges
from l0tre.certify.relax.instance import Instance, make_instance
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import Plan, make_plan
from l0tre.certify.relax.supported import curve_bounds, plain, reduce_graph, unsupported
from l0tre.domain import Domain
from l0tre.model.graph import Graph, run_operation
from l0tre.objective import AllRivals
from l0tre.testgen.goals import Goals, Target

__all__ = ["NeuronProver", "make_neuron_prover"]

ROW_BYTES = {"cpu": 2**23, "cuda": 2**30}


@dataclass(frozen=True)
class NeuronProver:
    """What the proofs for all seeds share.

    Attributes:
        goals: The neurons and their thresholds.
        domain: What may change.
        plan: The network, ready to be bounded.
        tree: The groups as the plan's cells.
        places: For each of the goals' layers the position in the plan's graph whose range tells of it.
        pulse: Felt while bounds are computed.
    """

    goals: Goals
    domain: Domain
    plan: Plan
    tree: Tree
    places: tuple[int, ...]
    pulse: Callable[[], None]

    @torch.inference_mode()
    def within(self, seed: Tensor, count: int) -> Tensor:
        """Which neurons no input activates that differs from a seed in at most so many groups.

        Args:
            seed: float32 ``[values]``.
            count: Changed groups.

        Returns:
            bool ``[neurons]``.
        """
        instance, count = self._instance(seed), min(count, self.domain.groups)
        known = {}
        for position in self.plan.borders:
            if position:
                down, up = self._largest_effects(instance, position, count)
                own, slack = instance.base[position], self.plan.slack[position]
                low, high = own + down.view(own.shape), own + up.view(own.shape)
                known[position] = ((low - slack).contiguous(), (high + slack).contiguous())
        return self._left_out(instance, root(0, count, seed.device), known)

    @torch.inference_mode()
    def nowhere(self, seed: Tensor) -> Tensor:
        """Which neurons no input of the domain activates that agrees with a seed in what never changes.

        Args:
            seed: float32 ``[values]``.

        Returns:
            bool ``[neurons]``.
        """
        device, slots = seed.device, (self.tree.order >= 0).nonzero()[:, 0]
        groups = self.tree.order[slots]
        domain = self.domain
        real = torch.arange(domain.members.shape[1], device=device) < domain.sizes[groups][:, None]
        low, high = (
            torch.where(real, ends[domain.members[groups]].double(), 0.0)[None] for ends in (domain.low, domain.high)
        )
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        nodes = BoxNodes(zero, (slots + self.tree.slots)[None], low, high, zero)
        return self._left_out(self._instance(seed), nodes, {})

    def _instance(self, seed: Tensor) -> Instance:
        label = AllRivals(torch.zeros(1, dtype=torch.int64, device=seed.device))
        instance = make_instance(self.plan, self.tree, self.domain, seed[None], label, 0, 0)
        return replace(instance, pulse=self.pulse)

    def _left_out(self, instance: Instance, nodes: Nodes, known: dict[int, Interval]) -> Tensor:
        ranges = input_ranges(instance, nodes, ROW_BYTES[self.plan.device.type], known)
        highest = [
            self._highest(target, place, ranges) for target, place in zip(self.goals.targets, self.places, strict=True)
        ]
        # Written so that NaN proves nothing.
        return torch.cat(highest) <= self.goals.thresholds

    def _highest(self, target: Target, place: int, ranges: dict[int, Interval]) -> Tensor:
        """The largest values that a layer's neurons attain, float64 ``[neurons]``; infinite where nothing is known."""
        nothing = torch.full((target.layer.size,), math.inf, dtype=torch.float64, device=self.plan.device)
        if place not in ranges:
            return nothing
        low, high = ranges[place]
        if target.watched != target.layer.position:
            return high[0].flatten()
        operation = self.goals.wide.operations[target.layer.position]
        curve = curve_bounds(operation)
        if curve is None:  # a clip, which the plan writes as other operations
            return nothing
        top = curve.interval(operation, low, high)[1][0]
        # The curve's own rounding; see ``relax.plan`` for the slack of what it reads.
        return (top + 1e-12 * (1 + top.abs())).flatten()

    def _largest_effects(self, instance: Instance, position: int, most: int) -> tuple[Tensor, Tensor]:
        """What changing so many groups can take from, and add to, each value of an affine position, exactly.

        Returns:
            float64 ``[values]`` twice: sums of the largest effects of single groups.
        """
        operations = self.plan.graph.operations
        needed = {position}
        for place in range(position, 0, -1):
            if place in needed:
                needed.update(operations[place].inputs)
        linear = [(place, plain(operations[place])) for place in sorted(needed - {0})]
        size, width = self.plan.slack[position].numel(), self.domain.members.shape[1]
        device, values = self.plan.device, instance.values
        tops = [torch.zeros(most, size, dtype=torch.float64, device=device) for _ in range(2)]
        step = max(1, ROW_BYTES[device.type] // (8 * size * width))
        down, up = instance.down[0], instance.up[0]
        for start in range(0, self.domain.groups, step):
            self.pulse()
            members = self.domain.members[start : start + step]
            unit = torch.zeros(members.numel(), values, dtype=torch.float64, device=device)
            unit.scatter_(1, members.reshape(-1, 1), 1.0)
            found = {0: unit.view(-1, *operations[0].shape)}
            for place, operation in linear:
                found[place] = run_operation(operation, *(found[source] for source in operation.inputs))
            columns = found[position].reshape(len(members), width, size)
            real = torch.arange(width, device=device) < self.domain.sizes[start : start + step][:, None]
            first, second = (columns * (ends[members] * real)[:, :, None] for ends in (down, up))
            for number, effect in enumerate(
                (-torch.minimum(first, second).sum(1), torch.maximum(first, second).sum(1))
            ):
                both = torch.cat([tops[number], effect.clamp(min=0)])
                tops[number] = both.topk(most, 0).values
        return -tops[0].sum(0), tops[1].sum(0)


def make_neuron_prover(
    graph: Graph, goals: Goals, domain: Domain, pulse: Callable[[], None] = lambda: None
) -> NeuronProver | str:
    """Get ready to prove that neurons are out of reach.

    Args:
        graph: The network in float64, see ``Network.exact``.
        goals: The neurons.
        domain: What may change, on the goals' device.
        pulse: Felt while bounds are computed; may raise ``Halted``.

    Returns:
        The prover, or why there is none.
    """
    reason = unsupported(graph)
    if reason:
        return reason
    plan = make_plan(graph, domain, goals.device)
    tree = make_tree(domain.to(torch.device("cpu")), graph).to(goals.device)
    return NeuronProver(goals, domain, plan, tree, tuple(_places(graph, goals.targets)), pulse)


def _places(graph: Graph, targets: Sequence[Target]) -> Iterator[int]:
    """Where the prover's graph, in which some operations are written as others, has the ranges of layers."""
    for target in targets:
        source = graph.operations[target.layer.position].inputs[0]
        yield len(reduce_graph(Graph(graph.operations[: source + 1])).operations) - 1
