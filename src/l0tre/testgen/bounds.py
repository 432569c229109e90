"""Proofs that no test is near: every neuron's range over all inputs with so many changed groups, all at once.

The ranges are those of the certified prover: by lines over the node of all sets of a size, or over the whole domain
(``certify.relax``), and by forms carried forwards from each single group (``certify.boxes``), which are much closer.
What a range leaves out no input attains, whatever real values its groups take.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.boxes.form_bounds import seeds_of
from l0tre.certify.boxes.forward_forms import Forms, carry, item_bytes, make_forward, ranges
from l0tre.certify.boxes.range_parts import full_boxes, halved
from l0tre.certify.boxes.rounding import drifts
from l0tre.certify.regions.nodes import BoxNodes, Nodes, join, root
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

__all__ = ["CLOSE_HALVINGS", "NeuronProver", "make_neuron_prover"]

ROW_BYTES = {"cpu": 2**23, "cuda": 2**30}
FORM_BYTES = {"cpu": 2**26, "cuda": 2**32}  # forms that are carried together
HALVINGS = 1  # of the range of a single group's values, where many neurons are asked about
CLOSE_HALVINGS = 5  # for neurons without a test
MOST_PARTS = 2  # parts of ranges for each group, beyond which they are not halved again


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
    def within(self, seed: Tensor, count: int, open_: Tensor) -> Tensor:
        """Which neurons no input activates that differs from a seed in at most so many groups.

        Args:
            seed: float32 ``[values]``.
            count: Changed groups.
            open_: bool ``[neurons]``, those that it is asked of.

        Returns:
            bool ``[neurons]``, some of these.
        """
        instance, count = self._instance(seed), min(count, self.domain.groups)
        known, upto = {}, self._last(open_)
        for position in self.plan.borders:
            if 0 < position <= upto:
                down, up = self._largest_effects(instance, position, count)
                own, slack = instance.base[position], self.plan.slack[position]
                low, high = own + down.view(own.shape), own + up.view(own.shape)
                known[position] = ((low - slack).contiguous(), (high + slack).contiguous())
        return self._left_out(instance, root(0, count, seed.device), known, upto) & open_

    @torch.inference_mode()
    def alone(self, seed: Tensor, open_: Tensor, halvings: int = HALVINGS) -> Tensor:
        """Which neurons no change of a single group activates, group by group and part by part of its values.

        Args:
            seed: float32 ``[values]``.
            open_: bool ``[neurons]``, those that it is asked of.
            halvings: Of the range of a group's values, at the most.

        Returns:
            bool ``[neurons]``, some of these.
        """
        instance = self._instance(seed)
        forward, drift = make_forward(self.plan), drifts(self.plan, instance.images, instance.base)
        asked = [
            (target, place)
            for target, place in zip(self.goals.targets, self.places, strict=True)
            if bool(open_[target.layer.place].any()) and place in drift
        ]
        keep = {place for _, place in asked}
        proved = torch.zeros_like(open_)
        for target, _ in asked:
            proved[target.layer.place] = open_[target.layer.place]
        if not asked:
            return proved
        cells = (self.tree.order >= 0).nonzero()[:, 0] + self.tree.slots
        nodes = full_boxes(instance, 0, cells[:, None])
        size = item_bytes(forward, 1 + self.domain.members.shape[1], 0, max(keep))
        most = max(1, FORM_BYTES[seed.device.type] // size)
        for halving in range(halvings + 1):
            rest: list[BoxNodes] = []
            unproved = torch.zeros_like(open_)
            for start in range(0, len(nodes), most):
                part = nodes.pick(slice(start, start + most))
                found = carry(forward, instance, drift, part.image, 0, seeds_of(instance, part), keep)
                left = self._attainable(asked, found, instance, drift, part) & open_
                unproved |= left.any(0)
                rest.append(part.pick(left.any(1)))
            nodes = join(rest)
            if halving == halvings or not 0 < len(nodes) <= MOST_PARTS * self.domain.groups:
                break
            nodes = halved(nodes, 1)
        return proved & ~unproved

    def _attainable(
        self,
        asked: Sequence[tuple[Target, int]],
        found: Mapping[int, Forms],
        instance: Instance,
        drift: Mapping[int, Tensor],
        nodes: BoxNodes,
    ) -> Tensor:
        """Which neurons some input of each node may activate, for all that its forms say; bool ``[nodes, neurons]``."""
        answer = torch.ones(len(nodes), self.goals.count, dtype=torch.bool, device=nodes.image.device)
        for target, place in asked:
            values = ranges(found[place], instance.base[place][nodes.image], drift[place][nodes.image])
            highest = self._top(target, *values)
            # Written so that NaN proves nothing.
            answer[:, target.layer.place] = ~(highest <= self.goals.thresholds[target.layer.place])
        return answer

    @torch.inference_mode()
    def nowhere(self, seed: Tensor, open_: Tensor) -> Tensor:
        """Which neurons no input of the domain activates that agrees with a seed in what never changes.

        Args:
            seed: float32 ``[values]``.
            open_: bool ``[neurons]``, those that it is asked of.

        Returns:
            bool ``[neurons]``, some of these.
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
        return self._left_out(self._instance(seed), nodes, {}, self._last(open_)) & open_

    def _instance(self, seed: Tensor) -> Instance:
        label = AllRivals(torch.zeros(1, dtype=torch.int64, device=seed.device))
        instance = make_instance(self.plan, self.tree, self.domain, seed[None], label, 0, 0)
        return replace(instance, pulse=self.pulse)

    def _last(self, open_: Tensor) -> int:
        """The last position whose ranges tell of some neurons."""
        read = zip(self.goals.targets, self.places, strict=True)
        return max((place for target, place in read if bool(open_[target.layer.place].any())), default=0)

    def _left_out(self, instance: Instance, nodes: Nodes, known: dict[int, Interval], upto: int) -> Tensor:
        found = input_ranges(instance, nodes, ROW_BYTES[self.plan.device.type], known, upto)
        highest = [
            self._highest(target, place, found) for target, place in zip(self.goals.targets, self.places, strict=True)
        ]
        # Written so that NaN proves nothing.
        return torch.cat(highest) <= self.goals.thresholds

    def _highest(self, target: Target, place: int, found: Mapping[int, Interval]) -> Tensor:
        """The largest values that a layer's neurons attain, float64 ``[neurons]``; infinite where nothing is known."""
        if place not in found:
            return torch.full((target.layer.size,), math.inf, dtype=torch.float64, device=self.plan.device)
        return self._top(target, *found[place])[0]

    def _top(self, target: Target, low: Tensor, high: Tensor) -> Tensor:
        """The largest values of a layer's neurons ``[nodes, neurons]``, from the ranges of what it reads."""
        if target.watched != target.layer.position:
            return high.flatten(1)
        operation = self.goals.wide.operations[target.layer.position]
        curve = curve_bounds(operation)
        if curve is None:  # a clip, which the plan writes as other operations
            return torch.full_like(high, math.inf).flatten(1)
        top = curve.interval(operation, low, high)[1]
        # The curve's own rounding; see ``relax.plan`` for the slack of what it reads.
        return (top + 1e-12 * (1 + top.abs())).flatten(1)

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
