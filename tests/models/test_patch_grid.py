import itertools

import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter

from sgpmil.models.patch_grid import KERNEL, grid_cells, grid_pitch, smooth


def dense_grid(width, height, pitch=256, origin=(0, 0)):
    """Corners of the patches of a full grid, row by row."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([columns, rows], -1).reshape(-1, 2) * pitch + torch.tensor(origin)


def one_bag(count):
    return torch.zeros(count, dtype=torch.long)


def smooth_bag(values, coords, pitch):
    index = one_bag(len(coords))
    return smooth(values, grid_cells(coords, index, torch.tensor([pitch])), index)


def convolved(values, height, width):
    kernel = torch.tensor([[0.0113, 0.0838, 0.0113], [0.0838, 0.6193, 0.0838], [0.0113] * 3])
    kernel[2, 1] = 0.0838
    maps = values.float().view(-1, 1, height, width)
    return F.conv2d(maps, kernel.view(1, 1, 3, 3), padding=1).view(len(values), -1)


def test_kernel_is_a_gaussian_that_sums_to_one():
    assert sum(KERNEL.values()) == pytest.approx(1, abs=1e-15)
    impulse = torch.zeros(5, 5).double()
    impulse[2, 2] = 1
    truth = gaussian_filter(impulse.numpy(), sigma=0.5, radius=1)
    for (dx, dy), weight in KERNEL.items():
        assert weight == pytest.approx(truth[2 + dy, 2 + dx], rel=1e-9)


@pytest.mark.parametrize(("width", "height"), [(40, 3), (3, 40), (1, 1), (1, 9), (7, 7)])
def test_on_a_full_grid_it_is_the_convolution(width, height):
    """Wide slides sheared in the published code, whose rows were a cell too short."""
    torch.manual_seed(0)
    values = torch.randn(3, width * height)
    order = torch.randperm(width * height)
    result = smooth_bag(values[:, order], dense_grid(width, height)[order], 256)
    assert (result - convolved(values, height, width)[:, order]).abs().max() < 1e-3


def test_row_ends_are_not_neighbours():
    """With a row stride that is too short, the end of a row runs into the next."""
    coords = dense_grid(12, 2)
    for hot in (0, 11, 12, 23):
        values = torch.zeros(1, 24)
        values[0, hot] = 1
        lit = smooth_bag(values, coords, 256)[0] > 0
        near = ((coords - coords[hot]).abs() <= 256).all(1)
        assert torch.equal(lit, near)


@pytest.mark.parametrize("pitch", [224, 448, 896])
@pytest.mark.parametrize("origin", [(0, 0), (5_311, 17), (90_001, 120_333)])
def test_neighbours_are_one_patch_apart_wherever_the_tissue_lies(pitch, origin):
    """The published pitch of 224 pixels finds no neighbour of a patch that spans 448."""
    torch.manual_seed(0)
    values = torch.randn(2, 30)
    result = smooth_bag(values, dense_grid(6, 5, pitch, origin), pitch)
    assert (result - convolved(values, 5, 6)).abs().max() < 1e-3


def test_moving_the_tissue_changes_nothing():
    torch.manual_seed(0)
    coords = torch.randint(0, 5000, (50, 2))  # on no grid
    index = torch.tensor([0] * 30 + [1] * 20)
    cells = grid_cells(coords, index, torch.tensor([448, 300]))
    for shift in ([1, 0], [-77, 223], [100_003, 61_111]):
        moved = coords + torch.tensor(shift)
        assert torch.equal(grid_cells(moved, index, torch.tensor([448, 300])), cells)
    assert cells[:30].amin(0).tolist() == cells[30:].amin(0).tolist() == [0, 0]


def test_missing_patches_count_as_zero():
    torch.manual_seed(0)
    values = torch.randn(1, 30)
    kept = torch.rand(30) < 0.6
    values[:, ~kept] = 0
    result = smooth_bag(values[:, kept], dense_grid(6, 5)[kept], 256)
    assert 10 < kept.sum() < 25
    assert (result - convolved(values, 5, 6)[:, kept]).abs().max() < 1e-3


def test_several_patches_of_a_cell():
    """By loops: each keeps its own value, neighbours see their mean."""
    torch.manual_seed(0)
    coords = torch.randint(0, 1000, (60, 2))
    values = torch.randn(2, 60).double()
    index = one_bag(60)
    cells = grid_cells(coords, index, torch.tensor([150]))
    expected = torch.zeros_like(values)
    for i in range(60):
        expected[:, i] = KERNEL[0, 0] * values[:, i]
        for (dx, dy), weight in KERNEL.items():
            there = [
                j for j in range(60) if (cells[j] - cells[i]).tolist() == [dx, dy] and (dx or dy)
            ]
            if there:
                expected[:, i] += weight * values[:, there].mean(1)
    assert len(cells.unique(dim=0)) < 50  # some share a cell
    assert (smooth(values, cells, index) - expected).abs().max() < 1e-12


def test_bags_of_a_batch_never_mix():
    torch.manual_seed(0)
    parts = [
        (dense_grid(6, 5, 448, (7, 3)), 448),
        (dense_grid(1, 1), 256),
        (dense_grid(20, 2, 224, (10_000, 9)), 224),
    ]
    values = [torch.randn(2, len(coords)) for coords, _ in parts]
    alone = [smooth_bag(v, coords, p) for v, (coords, p) in zip(values, parts, strict=True)]
    coords = torch.cat([coords for coords, _ in parts])
    index = torch.cat([one_bag(len(c)) + b for b, (c, _) in enumerate(parts)])
    cells = grid_cells(coords, index, torch.tensor([pitch for _, pitch in parts]))
    together = smooth(torch.cat(values, 1), cells, index)
    assert torch.allclose(together, torch.cat(alone, 1), atol=1e-7)


def test_cells_of_tissue_pieces_with_grids_of_their_own():
    """Patches one pitch apart are one cell apart, even half a pitch off the bag's corner."""
    row = torch.tensor([[0, 0], *([512 * k + 256, 3000] for k in range(6))])
    cells = grid_cells(row, one_bag(7), torch.tensor([512]))
    assert cells[1:, 0].diff().tolist() == [1] * 5


def test_unknown_pitch_is_the_usual_step_of_neighbours():
    coords = torch.cat(
        [
            dense_grid(4, 3, 448, (33, 7)),
            torch.tensor([[5, 5]]),  # one patch
            torch.tensor([[0, 70], [0, 310], [0, 790]]),  # one column
            dense_grid(3, 3, 224, (90_000, 0))[torch.tensor([0, 1, 3, 5, 8])],
        ]
    )
    index = torch.tensor([0] * 12 + [1] + [2] * 3 + [3] * 5)
    pitch = grid_pitch(coords, index, 4)
    assert pitch[[0, 2, 3]].tolist() == [448, 240, 224]
    cells = grid_cells(coords, index, pitch)
    assert cells[12].tolist() == [0, 0]
    assert cells[13:16].tolist() == [[0, 0], [0, 1], [0, 3]]
    assert torch.equal(cells[:12], dense_grid(4, 3, 1))
    shifted = torch.randperm(20)
    assert torch.equal(grid_pitch(coords[shifted], index[shifted], 4), pitch)


def test_gradient_is_the_transpose():
    torch.manual_seed(0)
    coords = torch.randint(0, 900, (20, 2), dtype=torch.int32)
    index = torch.tensor([0] * 12 + [1] * 8)
    cells = grid_cells(coords, index, torch.tensor([150, 200]))
    values = torch.randn(2, 20).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: smooth(v, cells, index), values)


def test_float64_keeps_its_precision():
    values = torch.ones(1, 9).double()
    centre = smooth_bag(values, dense_grid(3, 3), 256)[0, 4]
    assert centre.item() == pytest.approx(1, abs=1e-15)


def test_a_large_slide_needs_no_pairs_of_patches():
    coords = dense_grid(400, 250, 256)
    smoothed = smooth_bag(torch.ones(1, 100_000), coords, 256)  # pairs would take 40 GB
    assert smoothed.max().item() == pytest.approx(1, abs=1e-5)
    inner = (coords > 256).all(1) & (coords < torch.tensor([398, 248]) * 256).all(1)
    assert torch.allclose(smoothed[0, inner], torch.ones(int(inner.sum())), atol=1e-5)


def test_pieces_of_tissue_with_grids_of_their_own_do_not_hide_the_pitch():
    coords = torch.cat([dense_grid(6, 6, 448, (1000, 2000)), dense_grid(6, 6, 448, (9003, 2017))])
    index = torch.zeros(72, dtype=torch.long)
    pitch = grid_pitch(coords, index, 1)
    assert pitch.tolist() == [448]
    smoothed = smooth(torch.ones(1, 72), grid_cells(coords, index, pitch), index)
    assert smoothed.max().item() == pytest.approx(1.0, abs=1e-5)  # inner patches: all neighbours


def counted_pitch(coords, index, num_bags):
    """The most frequent step of each bag, of several the smallest, counted in lists."""
    pitch = []
    for b in range(num_bags):
        corners = coords[index == b].tolist()
        steps = []
        for along, across in ((0, 1), (1, 0)):
            for line in {corner[across] for corner in corners}:
                places = sorted(corner[along] for corner in corners if corner[across] == line)
                steps += [end - start for start, end in itertools.pairwise(places) if end > start]
        most = max((steps.count(step) for step in steps), default=0)
        frequent = [step for step in steps if steps.count(step) == most]
        pitch.append(min(frequent, default=2**31 - 1))
    return pitch


@pytest.mark.parametrize("seed", range(5))
def test_pitch_is_that_of_counting(seed):
    """With ties of steps, patches on top of each other, lone patches and bags without any step."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.tensor([0] * 25 + [1] + [2] * 40 + [3] * 2 + [4] * 12)
    coords = 7 * torch.randint(0, 9, (80, 2), generator=generator)
    coords[-12:] = coords[-1]
    coords[66:68] = torch.tensor([[0, 0], [5, 5]])
    found = grid_pitch(coords, index, 5)
    assert found.tolist() == counted_pitch(coords, index, 5)
    assert found[3] == found[4] == 2**31 - 1
