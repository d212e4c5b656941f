import numpy as np
import pytest

pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.phantoms.nuclei import DIRECTIONS, album, largest_half, lattice_places, stamp


def areas(name, mpp):
    """Areas of the nuclei of an album in square microns."""
    return np.array([(picture > 40).sum() * mpp**2 for picture in album(name, mpp).pictures])


@pytest.mark.parametrize("mpp", [0.25, 0.5])
def test_sizes_are_those_of_cells(mpp):
    diameter = {name: 2 * np.sqrt(areas(name, mpp) / np.pi) for name in ("lymphocyte", "tumour")}
    assert 5 < diameter["lymphocyte"].mean() < 8
    assert 8.5 < diameter["tumour"].mean() < 13
    assert diameter["tumour"].std() > 2 * diameter["lymphocyte"].std()


def test_resolution_changes_pixels_and_not_microns():
    fine, coarse = areas("epithelial", 0.25), areas("epithelial", 0.5)
    assert fine.mean() == pytest.approx(coarse.mean(), rel=0.08)


def test_tumour_nuclei_are_not_told_by_darkness_alone():
    def mean_values(name):
        return np.array([p[p > 40].mean() for p in album(name, 0.5).pictures])

    tumour, lymphocyte = mean_values("tumour"), mean_values("lymphocyte")
    assert tumour.mean() < lymphocyte.mean()
    assert tumour.std() > lymphocyte.std()


def test_pictures_point_where_they_say():
    pictures = album("fibroblast", 0.25)
    for direction in range(DIRECTIONS):
        picture = pictures.pictures[direction * pictures.variants].astype(float)
        row, column = np.indices(picture.shape) - picture.shape[0] // 2
        weight = picture / picture.sum()
        spread = np.array(
            [
                [(weight * column * column).sum(), (weight * column * row).sum()],
                [(weight * column * row).sum(), (weight * row * row).sum()],
            ]
        )
        x, y = np.linalg.eigh(spread)[1][:, 1]
        angle = np.arctan2(y, x) - direction * np.pi / DIRECTIONS
        assert abs((angle + np.pi / 2) % np.pi - np.pi / 2) < 0.2


def test_places_do_not_depend_on_the_window():
    x, y, chance = lattice_places(5, 1, 10.0, (0.0, 0.0, 300.0, 200.0))
    inner = (x >= 90) & (x < 210) & (y >= 33) & (y < 120)
    x2, y2, chance2 = lattice_places(5, 1, 10.0, (90.0, 33.0, 210.0, 120.0))
    order, order2 = np.lexsort((x[inner], y[inner])), np.lexsort((x2, y2))
    np.testing.assert_array_equal(x[inner][order], x2[order2])
    np.testing.assert_array_equal(chance[:, inner][:, order], chance2[:, order2])


def test_places_keep_their_distance_and_their_density():
    from scipy.spatial import cKDTree

    x, y, _ = lattice_places(5, 1, 10.0, (0.0, 0.0, 1000.0, 1000.0))
    nearest = cKDTree(np.column_stack([x, y])).query(np.column_stack([x, y]), k=2)[0][:, 1]
    assert np.quantile(nearest, 0.05) > 4
    # A cell of a hexagonal lattice has an area of √3/2 of the spacing squared.
    assert len(x) == pytest.approx(1e6 / (100 * np.sqrt(3) / 2), rel=0.02)


def test_the_order_of_stamps_does_not_matter(rng):
    edge = largest_half(0.5)
    column, row = rng.integers(0, 60, size=(2, 200))
    direction, variant = rng.integers(0, DIRECTIONS, 200), rng.uniform(size=200)
    canvases = []
    for order in (np.arange(200), np.arange(200)[::-1]):
        canvas = np.zeros((60 + 2 * edge, 60 + 2 * edge), np.uint8)
        stamp(
            canvas,
            edge,
            album("tumour", 0.5),
            column[order],
            row[order],
            direction[order],
            variant[order],
        )
        canvases.append(canvas)
    np.testing.assert_array_equal(*canvases)
    one = np.zeros_like(canvases[0])
    centre = np.array([30])
    stamp(one, edge, album("tumour", 0.5), centre, centre, np.array([0]), np.array([0.0]))
    assert one[edge + 30, edge + 30] > 40
    assert one.sum() == album("tumour", 0.5).pictures[0].sum()
