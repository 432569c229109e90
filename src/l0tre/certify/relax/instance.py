"""Images under proof: their ranges in tree order, their own values in every layer, tables of the first layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.regions.tree import Tree
from l0tre.certify.relax.cell_tables import CellTable, make_table
from l0tre.certify.relax.plan import Plan, base_values
from l0tre.certify.relax.supported import plain
from l0tre.domain import Domain
from l0tre.model.graph import run_operation
from l0tre.objective import Specification

__all__ = [
    "Instance",
    "make_instance",
    "one_pixel_each",
    "table_size",
]


@dataclass(frozen=True)
class Instance:
    """Images that are bounded together, everything float64 on the plan's device.

    Attributes:
        plan: The network.
        tree: The cells.
        images: ``[images, values]``.
        specification: What must hold of each image.
        down: ``[images, values]``, how far each value may fall, at most 0; 0 for values that never change.
        up: ``[images, values]``, how far each value may rise, at least 0.
        members: int64 ``[slots, width]``, values of the group in each slot; ``values`` (one past the last) for none.
        pixels: For inputs that are maps, int64 ``[slots, width]``: the different pixels of the group in each slot,
            ``H * W`` for none.
        slot_of_pixel: If every group is one pixel of a ``(C, H, W)`` input: int64 ``[H * W]``, the slot of each pixel,
            -1 for one that never changes.
        base: The images' own values by position, ``[images, *shape]``.
        rows: ``[images, rivals, classes]``, the specification: margins over the rivals as rows at the output.
        margins: ``[images, rivals]``, the images' own margins, label's score minus a rival's.
        slack: ``[images, rivals]``, what a margin's bound must exceed.
        tables: For affine positions that others read: what groups of cells can add to each neuron.
        walked: Affine positions whose ranges follow from those of the input, since a table would be too large.
        pulse: Called again and again while nodes are bounded; may raise ``findings.Halted``.
    """

    plan: Plan
    tree: Tree
    images: Tensor
    specification: Specification
    down: Tensor
    up: Tensor
    members: Tensor
    pixels: Tensor | None
    slot_of_pixel: Tensor | None
    base: dict[int, Tensor]
    rows: Tensor
    margins: Tensor
    slack: Tensor
    tables: dict[int, CellTable]
    walked: set[int]
    pulse: Callable[[], None] = lambda: None

    @property
    def values(self) -> int:
        """Number of input values."""
        return self.images.shape[1]


def make_instance(
    plan: Plan, tree: Tree, domain: Domain, images: Tensor, specification: Specification, ranks: int, table_bytes: int
) -> Instance:
    """Gather what proofs about some images need.

    Args:
        plan: The network.
        tree: Cells of the domain's groups.
        domain: Groups and ranges.
        images: ``[images, values]``.
        specification: What must hold of each image.
        ranks: Largest number of groups that change together.
        table_bytes: Memory for the tables; positions whose table is larger go without.

    Returns:
        The instance.
    """
    device = plan.device
    tree, domain = tree.to(device), domain.to(device)
    images, specification = images.to(device, torch.float64), specification.to(device)
    labels = specification.labels
    free = torch.zeros(images.shape[1], dtype=torch.bool, device=device)
    free[domain.members.flatten()] = True
    down = torch.where(free, domain.low.double() - images, 0.0)
    up = torch.where(free, domain.high.double() - images, 0.0)
    width = domain.members.shape[1]
    real = torch.arange(width, device=device) < domain.sizes[:, None]
    padded = torch.where(real, domain.members, images.shape[1])
    members = torch.cat([padded, torch.full((1, width), images.shape[1], device=device)])[tree.order]
    base = base_values(plan, images)
    scores = base[len(plan.graph.operations) - 1].flatten(1)
    classes = scores.shape[1]
    others = specification.rivals(classes)
    unit = torch.eye(classes, dtype=torch.float64, device=device)
    rows = unit[labels][:, None] - unit[others]
    errors = plan.slack[-1].flatten()
    instance = Instance(
        plan,
        tree,
        images,
        specification,
        down,
        up,
        members,
        _pixels(plan, members),
        _slot_of_pixel(plan, domain, tree),
        base,
        rows,
        scores.gather(1, labels[:, None]) - scores.gather(1, others),
        errors[labels][:, None] + errors[others],
        {},
        set(),
    )
    left = table_bytes
    for position in plan.borders:
        size = table_size(plan, tree, position, len(images), ranks)
        if size <= left:
            left -= size
            instance.tables[position] = _table(instance, position, ranks)
        else:
            instance.walked.update(_ancestors(plan, position))
    return instance


def table_size(plan: Plan, tree: Tree, position: int, images: int, ranks: int) -> int:
    """Bytes that the table of a position takes while it is made."""
    neurons, values = plan.slack[position].numel(), plan.slack[0].numel()
    per_image = 2 * (ranks + 1) * tree.slots * neurons
    making = 2 * (ranks + 4) * tree.slots * neurons + 2 * values * neurons
    return 8 * (images * per_image + making)


def _ancestors(plan: Plan, position: int) -> set[int]:
    """A position and everything that it depends on."""
    needed = {position}
    for place in range(position, 0, -1):
        if place in needed:
            needed.update(plan.graph.operations[place].inputs)
    return needed


def _pixels(plan: Plan, members: Tensor) -> Tensor | None:
    if 0 not in plan.receptive_fields:
        return None
    channels, height, width = plan.graph.operations[0].shape
    none = height * width
    pixels = torch.where(members < channels * none, members % none, none).sort(1).values
    again = torch.zeros_like(pixels, dtype=torch.bool)
    again[:, 1:] = pixels[:, 1:] == pixels[:, :-1]
    pixels = torch.where(again, none, pixels).sort(1).values
    return pixels[:, : max(1, int((pixels < none).sum(1).max()))]


def _slot_of_pixel(plan: Plan, domain: Domain, tree: Tree) -> Tensor | None:
    if 0 not in plan.receptive_fields:
        return None
    _, height, width = domain.shape
    pixels = domain.members % (height * width)
    alone = bool((pixels == pixels[:, :1]).all()) and len(pixels[:, 0].unique()) == domain.groups
    if not alone:
        return None
    slots = torch.full((height * width,), -1, device=pixels.device)
    filled = (tree.order >= 0).nonzero()[:, 0]
    slots[pixels[tree.order[filled], 0]] = filled
    return slots


def one_pixel_each(plan: Plan, domain: Domain, tree: Tree) -> bool:
    """Whether every group is one pixel of a ``(C, H, W)`` input."""
    return _slot_of_pixel(plan, domain, tree.to(domain.members.device)) is not None


def _jacobian(plan: Plan, position: int) -> Tensor:
    """The linear map from the input to an affine position, ``[values, neurons]``."""
    operations = plan.graph.operations
    count = plan.slack[0].numel()
    result = torch.empty(count, plan.slack[position].numel(), dtype=torch.float64, device=plan.device)
    # Without constants, rather than less the value at zero: that difference would cancel, and domains can be wide.
    linear = {place: plain(operations[place]) for place in _ancestors(plan, position) - {0}}
    size = max(1, 2**24 // max(count, result.shape[1]))
    unit = torch.eye(count, dtype=torch.float64, device=plan.device)
    for start in range(0, count, size):
        values = {0: unit[start : start + size].view(-1, *operations[0].shape)}
        for place, operation in sorted(linear.items()):
            values[place] = run_operation(operation, *(values[source] for source in operation.inputs))
        result[start : start + size] = values[position].flatten(1)
    return result


def _table(instance: Instance, position: int, ranks: int) -> CellTable:
    """See ``Instance.tables``."""
    plan = instance.plan
    if position not in plan.jacobians:
        plan.jacobians[position] = _jacobian(plan, position)
    return make_table(instance.tree, plan.jacobians[position], instance.members, instance.down, instance.up, ranks)
