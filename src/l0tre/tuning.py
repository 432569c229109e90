"""How much is done at a time, and for how long before something else is tried: what tunes speed and nothing else.

Every value is a guess about machines or about where work usually pays. Another value makes an evaluation faster,
slower, or smoother to stop; bounds stay true, and are the same where the search is complete. Constants that claims rest
on (units of round-off, slacks, what counts as a tie) are not here: they stand beside the derivation that they come
from. So do the parameters that make one method what it is, such as the steps of a single attack.
"""

from dataclasses import dataclass

import torch

__all__ = ["DEFAULT_TUNING", "PerDevice", "Tuning"]


@dataclass(frozen=True)
class PerDevice:
    """A number that depends on where tensors are: a CPU has caches to fit, a GPU must be kept busy.

    Attributes:
        cpu: On a CPU.
        cuda: On a GPU.
    """

    cpu: int
    cuda: int

    def on(self, device: torch.device) -> int:
        """The number for a device."""
        return self.cuda if device.type == "cuda" else self.cpu


@dataclass(frozen=True)
class Tuning:
    """Sizes of work, times and patience; see the module for what they cannot change.

    Attributes:
        record_seconds: Least time between two recorded steps; the end of a level is recorded at once.
        grace_seconds: What a step may take, in spite of somebody who asked to stop. An attack then gives what it has, a
            step of a proof or of the grid search is lost unless it is the session's first.
        turn_seconds: Of proof for an image before the next one has its turn; doubled in every further round.
        task_seconds: Of a task that one of several workers gets: long enough to make up for handing it out, short
            enough to lose little with a worker and to end together.
        slice_seconds: After which a worker leaves a search that is no proof, and its images wait for their next task.
        trial_images: That try a proof by cells first: if boxes have to take over all of them, the others of the level
            begin there.
        attack_images: Attacked in one step: enough to fill the device, few enough to stop soon.
        batch_bytes: Activations of one forward batch: on a CPU more than fits its caches is slower, on a GPU more is no
            faster.
        least_rows: Of a forward batch, whatever they take within the memory budget: large networks are slower with
            fewer.
        grid_step_bytes: Activations of the forward passes of one step of the grid search, which should stop within
            seconds.
        grid_step_points: Grid points of one step by windows at ``t`` = 1, 2, 3, likewise: a point costs less there.
        window_bytes: Of one batch of windows.
        layout_sets: Sets of groups whose arrangement in windows is kept for the next images.
        paired_groups: Most groups of a network for which windows keep the table of interacting pairs, at ``t`` = 3.
        sampling_share: Of the real-time mode's time for random subspaces; the rest makes one adversarial input smaller.
        matrix_work: Convolutions of windows are matrix products on a GPU up to so many times their multiplications,
        matrix_size: and up to so many entries;
        matrix_rows: on a CPU up to so many inputs, in float32.
        matrix_rows_64: Likewise in float64, for which there are no fast convolutions.
        matrix_entries: Of all such matrices that are kept.
        table_part: The tables of a proof's first layer take at most one part in so many of the memory budget.
        cell_images: Proved together by cells.
        least_cells: Nodes of cells that are bounded together if there are so many: fewer take as long on a GPU.
        box_images: Proved together by boxes, which take less memory.
        box_sets: Of one image that can all be listed as boxes; beyond, only cells are used.
        box_values: Of one set that may change; with more, a bound of a cell costs less than one of a box.
        form_bytes: Of the forms of whole maps that are carried together: on a CPU more is slower, as memory that is
            given back and taken again has to be cleared.
        window_share: Of a map that a pixel reaches, up to which forms are carried in windows.
        meeting_share: Of pairs of pixels that neurons see together, up to which boxes are bounded in windows.
        block_sets: Of all images that are proved together by boxes.
        set_bytes: That a set takes if it is left open.
        cell_patience: Nodes of cells for an image before boxes of values take over, where they can.
        hopeless: So do they if the bound of all sets at once is below this many times the image's own margin.
        box_step_seconds: Of one step by boxes; 0 for one batch.
        first_pass_seconds: Of one first pass over all sets of some images, which gives no result before its end.
        first_pass_images: In the first one, when nothing is known about its time.
        boxes: Bounded together.
        tried_boxes: Of a batch whose worst corner is run through the network, as a candidate for a witness.
    """

    record_seconds: float = 1.0
    grace_seconds: float = 1.5
    turn_seconds: float = 20.0
    task_seconds: float = 5.0
    slice_seconds: float = 60.0
    trial_images: int = 4
    attack_images: PerDevice = PerDevice(8, 1024)

    batch_bytes: PerDevice = PerDevice(2**25, 2**33)
    least_rows: int = 32

    grid_step_bytes: int = 2**28
    grid_step_points: tuple[PerDevice, PerDevice, PerDevice] = (
        PerDevice(2**17, 2**24),
        PerDevice(2**21, 2**27),
        PerDevice(2**24, 2**30),
    )
    window_bytes: PerDevice = PerDevice(2**25, 2**32)
    layout_sets: int = 2**22
    paired_groups: int = 4096
    sampling_share: float = 0.6

    matrix_work: int = 4
    matrix_size: int = 2**24
    matrix_rows: int = 64
    matrix_rows_64: int = 384
    matrix_entries: int = 2**26

    table_part: int = 4
    cell_images: PerDevice = PerDevice(1, 64)
    least_cells: PerDevice = PerDevice(1, 256)
    box_images: PerDevice = PerDevice(1, 256)
    box_sets: int = 2**22
    box_values: int = 12
    form_bytes: PerDevice = PerDevice(2**27, 2**40)
    window_share: float = 0.5
    meeting_share: float = 0.5
    block_sets: int = 2**26
    set_bytes: int = 64
    cell_patience: int = 128
    hopeless: float = -5.0
    box_step_seconds: float = 0.5
    first_pass_seconds: float = 10.0
    first_pass_images: int = 4
    boxes: PerDevice = PerDevice(2**11, 2**19)
    tried_boxes: int = 2**13


DEFAULT_TUNING = Tuning()
