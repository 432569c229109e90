import torch

from l0tre.zoo.augment import shifted_and_mirrored


def test_images_are_shifted_and_mirrored() -> None:
    """Every result is one of the 9 x 9 x 2 windows of the padded image; black comes in only from the edges."""
    torch.manual_seed(0)
    images = torch.rand(60, 2, 6, 5) + 0.1
    moved = shifted_and_mirrored(images)
    wide = torch.nn.functional.pad(images, [4] * 4)
    found = []
    for image, result in zip(wide, moved, strict=True):
        windows = {
            (row, column, mirror): window.flip(-1) if mirror else window
            for row in range(9)
            for column in range(9)
            for mirror in (False, True)
            for window in [image[:, row : row + 6, column : column + 5]]
        }
        found += [place for place, window in windows.items() if torch.equal(window, result)][:1]
    assert len(found) == 60
    assert {mirror for _, _, mirror in found} == {False, True}
    assert min(row for row, _, _ in found) == 0
    assert max(column for _, column, _ in found) == 8
