"""Proofs that no test is near: every neuron's range over all inputs with so many changed groups, all at once.

The ranges are those of the certified prover: by lines over the node of all sets of a size, or over the whole domain
(``certify.relax``), and by forms carried forwards from each single group (``certify.boxes``), which are much closer.
What a range leaves out no input attains, whatever real values its groups take.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forward, make_forward
from l0tre.certify.boxes.rounding import drifts
from l0tre.certify.boxes.window_forms import LocalNetwork, make_prefix
from l0tre.certify.regions.nodes import BoxNodes, Nodes, root
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.certify.relax.bounds import input_ranges
from l0tre.certify.relax.instance import Instance, make_instance, one_pixel_each
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import Plan, make_plan
from l0tre.certify.relax.supported import curve_bounds, plain, reduce_graph, unsupported
from l0tre.domain import Domain
from l0tre.locality.pair_interactions import is_chain
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.objective import AllRivals
from l0tre.testgen.goals import Goals, Target
from l0tre.testgen.small_changes import Changes, near_pairs, pair_products, refine

__all__ = ["CLOSE_HALVINGS", "NeuronProver", "make_neuron_prover"]

ROW_BYTES = {"cpu": 2**23, "cuda": 2**30}
HALVINGS = 1  # of the ranges of groups' values, where many neurons are asked about
CLOSE_HALVINGS = 5  # for neurons without a test
WINDOW_SHARE = 0.5  # of a map that a pixel reaches, up to which forms are carried in windows
PRODUCTS = {"cpu": 2.0**37, "cuda": 2.0**42}  # that carrying all pairs of pixels may take


@dataclass(frozen=True)
class NeuronProver:
    """What the proofs for all seeds share.

    Attributes:
        goals: The neurons and their thresholds.
        domain: What may change.
        plan: The network, ready to be bounded.
        tree: The groups as the plan's cells.
        places: For each of the goals' layers the position in the plan's graph whose range tells of it.
        shifts: By the layer's first neuron, what is to be added to the values there to get those that it activates.
        forward: The plan, ready for forms.
        local: Its first layers in windows; none if groups are not pixels or it does not begin with a chain of maps.
        pulse: Felt while bounds are computed.
    """

    goals: Goals
    domain: Domain
    plan: Plan
    tree: Tree
    places: tuple[int, ...]
    shifts: Mapping[int, float]
    forward: Forward
    local: LocalNetwork | None
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
        changes = self._changes(self._instance(seed), open_, self._read())
        if not changes.asked:
            return torch.zeros_like(open_)
        cells = (self.tree.order >= 0).nonzero()[:, 0] + self.tree.slots
        return changes.open_ & ~refine(changes, cells[:, None], halvings)

    @torch.inference_mode()
    def together(self, seed: Tensor, open_: Tensor) -> Tensor:
        """Which neurons no change of two pixels activates, pair by pair, of those that no single one does.

        Args:
            seed: float32 ``[values]``.
            open_: bool ``[neurons]``, those that it is asked of: proved that no change of a single pixel does.

        Returns:
            bool ``[neurons]``, some of these: of the first layers, as far as all pairs can be listed.
        """
        instance, nothing = self._instance(seed), torch.zeros_like(open_)
        if self.local is None:
            return nothing
        read = [(target, place) for target, place in self._read() if place <= self.local.plan.cut]
        most, sight = PRODUCTS[seed.device.type], (0, 0)
        chosen: list[tuple[Target, int]] = []
        for target, place in read:
            size = self.plan.receptive_fields[place].size
            sight = max(sight[0], size[0]), max(sight[1], size[1])
            if pair_products(self.local, instance, place, sight) > most:
                break
            if bool(open_[target.layer.place].any()):
                chosen.append((target, place))
                pairs = near_pairs(instance, sight)
        changes = self._changes(instance, open_, chosen)
        if not changes.asked or not len(pairs):
            return changes.open_ & nothing
        return changes.open_ & ~refine(changes, pairs, HALVINGS)

    def _read(self) -> list[tuple[Target, int]]:
        """The layers, each with the position whose range tells of it."""
        return list(zip(self.goals.targets, self.places, strict=True))

    def _changes(self, instance: Instance, open_: Tensor, read: Sequence[tuple[Target, int]]) -> Changes:
        """A seed, and those of some neurons that forms can tell of."""
        drift = drifts(self.plan, instance.images, instance.base)
        asked = [(target, place) for target, place in read if bool(open_[target.layer.place].any()) and place in drift]
        told = torch.zeros_like(open_)
        for target, _ in asked:
            told[target.layer.place] = open_[target.layer.place]
        thresholds = self.goals.thresholds
        return Changes(instance, self.forward, self.local, drift, asked, told, thresholds, self._top)

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
        operation, shift = self.goals.wide.operations[target.layer.position], self.shifts[target.layer.start]
        curve = curve_bounds(operation)
        if shift:
            low, high = low + shift, (high + shift).nextafter(high.new_tensor(math.inf))
        if curve is None or operation.kind == "relu":  # a clip, like a ReLU, never falls and rounds nothing
            return run_operation(operation, high).flatten(1)
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
    local = make_prefix(plan, WINDOW_SHARE) if one_pixel_each(plan, domain, tree) else None
    if local is not None and not is_chain(local.plan):
        local = None
    places = [_place(graph, target.layer.position) for target in goals.targets]
    shifts = {target.layer.start: shift for target, (_, shift) in zip(goals.targets, places, strict=True)}
    read = tuple(place for place, _ in places)
    return NeuronProver(goals, domain, plan, tree, read, shifts, make_forward(plan), local, pulse)


def _place(graph: Graph, position: int) -> tuple[int, float]:
    """Where the prover's graph has the ranges of what an activation reads, and what is missing to these values.

    Some operations are written as others there: a clip reads its input less a limit first.
    """
    operation = graph.operations[position]
    if curve_bounds(operation) is None:
        start = len(_reduced(graph, position))
        first = _reduced(graph, position + 1)[start]
        if "shift" in first.tensors:
            return start, -float(first.tensors["shift"])
    return len(_reduced(graph, operation.inputs[0] + 1)) - 1, 0.0


def _reduced(graph: Graph, count: int) -> tuple[Operation, ...]:
    return reduce_graph(Graph(graph.operations[:count])).operations
