"""From the dense layer after the windows to the margins: as linear forms, or as ranges alone."""

import torch
from torch import Tensor

from l0tre.certify.boxes.affine_forms import AffineForms, bend, least
from l0tre.certify.boxes.grouped_products import in_groups
from l0tre.certify.boxes.margin_errors import is_safe
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.relax.interval import Interval, step
from l0tre.certify.relax.supported import curve_bounds
from l0tre.model.graph import run_operation

__all__ = ["form_ranges", "interval_margins", "margin_bytes", "margin_forms", "proves"]


def margin_bytes(windowed: Windowed, columns: int) -> int:
    """Memory that :func:`margin_forms` takes for one entry of so many columns."""
    return 8 * 24 * windowed.weights.shape[-1] * columns


def margin_forms(windowed: Windowed, image: Tensor, forms: AffineForms) -> Tensor:
    """Lower bounds of the margins from forms of the dense layer after the windows.

    Args:
        windowed: Network and images.
        image: int64 ``[batch]``, the image of each entry.
        forms: ``[batch, 1 + variables, features]``.

    Returns:
        ``[batch, classes - 1, 1 + variables]``.
    """
    own = windowed.instance.margins[image]
    if windowed.local.flat:
        lower = (forms.centre - forms.radius).transpose(1, 2)
    else:
        first, end, source = _after(windowed)
        values = {first - 1: forms}
        for place in range(first, end):
            values[place] = _whole(windowed, place, image, values)
        lower = _by_rows(windowed, image, values[source]).transpose(1, 2)
    return torch.cat([(lower[..., 0] + own)[..., None], lower[..., 1:]], 2)


def _after(windowed: Windowed) -> tuple[int, int, int]:
    """Positions after the dense layer up to the last linear operation, and what this one (or the margins) reads."""
    operations = windowed.local.plan.graph.operations
    last = len(operations) - 1
    return (
        (windowed.local.plan.tail, last, operations[last].inputs[0])
        if operations[last].kind == "linear"
        else (windowed.local.plan.tail, last + 1, last)
    )


def _by_rows(windowed: Windowed, image: Tensor, forms: AffineForms) -> Tensor:
    """The least change of the margins ``[batch, columns, classes - 1]`` from forms of what their rows read."""
    if len(image) == 1:
        rows = windowed.rows[image[0]].T
        return forms.centre @ rows - forms.radius @ rows.abs()
    groups = in_groups(image, len(windowed.rows))
    rows = windowed.rows[image[groups.first]].transpose(1, 2)
    columns = forms.centre.shape[1]
    centre, radius = (
        torch.bmm(part[groups.slots].flatten(1, 2), factor).view(-1, columns, rows.shape[2])[groups.where]
        for part, factor in ((forms.centre, rows), (forms.radius, rows.abs()))
    )
    return centre - radius


def interval_margins(windowed: Windowed, image: Tensor, ranges: Interval) -> Tensor:
    """Lower bounds of the margins from ranges of the dense layer after the windows, if that does not give them.

    Far cheaper than :func:`margin_forms`, and better where boxes are so wide that most neurons change sign.

    Args:
        windowed: Network and images.
        image: int64 ``[batch]``, the image of each entry; or ``[1]``, that of all.
        ranges: Smallest and largest differences to the image's own values, ``[batch, features]`` each.

    Returns:
        ``[batch, classes - 1]``.
    """
    local, base = windowed.local, windowed.instance.base
    first, end, source = _after(windowed)
    values = {first - 1: _widened(ranges, base[first - 1][image], local.slack[first - 1])}
    for place in range(first, end):
        operation = local.plan.graph.operations[place]
        values[place] = _widened(
            step(operation, [values[origin] for origin in operation.inputs]), 0.0, local.slack[place]
        )
    own = base[source][image]
    low, high = (part - own for part in values[source])
    forms = AffineForms(((low + high) / 2)[:, None], ((high - low) / 2)[:, None])
    # A range without an end must not become finite again, as a sigmoid would make it.
    finite = 0.0 * (ranges[0].sum(1) + ranges[1].sum(1))[:, None]  # or not a number
    return _by_rows(windowed, image, forms)[:, 0] + windowed.instance.margins[image] + finite


def _widened(ranges: Interval, own: Tensor | float, slack: float) -> Interval:
    return ranges[0] + own - slack, ranges[1] + own + slack


def _whole(windowed: Windowed, place: int, image: Tensor, values: dict[int, AffineForms]) -> AffineForms:
    """One operation after the windows, on whole layers."""
    local = windowed.local
    operation = local.plan.graph.operations[place]
    sources = [values[source] for source in operation.inputs]
    if curve_bounds(operation) is not None:
        source = operation.inputs[0]
        before, after = windowed.instance.base[source][image], windowed.instance.base[place][image]
        return bend(operation, sources[0], before, after, local.slack[source])
    parts = []
    for kind, name in ((local.plain[place], "centre"), (local.positive[place], "radius")):
        inputs = [getattr(source, name) for source in sources]
        result = run_operation(kind, *(part.flatten(0, 1) for part in inputs))
        parts.append(result.view(*inputs[0].shape[:2], *result.shape[1:]))
    return AffineForms(parts[0], parts[1])


def form_ranges(forms: AffineForms) -> Interval:
    """Smallest and largest values ``[batch, features]`` of forms ``[batch, 1 + variables, features]`` over the box."""
    lower, upper = forms.centre - forms.radius, forms.centre + forms.radius
    return lower[:, 0] - lower[:, 1:].abs().sum(1), upper[:, 0] + upper[:, 1:].abs().sum(1)


def proves(windowed: Windowed, image: Tensor, forms: AffineForms, t: int) -> Tensor:
    """Whether forms of the dense layer prove that no margin falls to zero, bool ``[batch]``.

    Ranges first, which decide most; forms for the others.
    """
    most = max(1, windowed.budget // margin_bytes(windowed, forms.centre.shape[1]))
    result = torch.zeros(len(image), dtype=torch.bool, device=image.device)
    for start in range(0, len(image), most):
        rows = torch.arange(start, min(start + most, len(image)), device=image.device)
        if not windowed.local.flat:
            part = AffineForms(forms.centre[start : start + most], forms.radius[start : start + most])
            safe = is_safe(
                windowed.instance, image[rows], interval_margins(windowed, image[rows], form_ranges(part)), t
            )
            result[rows] = safe
            rows = rows[~safe]
        if len(rows):
            margins = least(margin_forms(windowed, image[rows], AffineForms(forms.centre[rows], forms.radius[rows])))
            result[rows] = is_safe(windowed.instance, image[rows], margins, t)
    return result
