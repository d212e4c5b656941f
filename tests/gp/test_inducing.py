import pytest
import torch
from sklearn.datasets import make_blobs

from sgpmil.errors import SettingsError
from sgpmil.gp.inducing import kmeans_points, uniform_points


def test_uniform_points_fill_the_unit_cube():
    torch.manual_seed(0)
    points = uniform_points(4000, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    # A mean of 4000 uniform values has standard error 1 / sqrt(12 · 4000) = 0.0046.
    assert torch.allclose(points.mean(0), torch.full((2,), 0.5), atol=5 * 0.0046)
    assert torch.allclose(points.var(0), torch.full((2,), 1 / 12), atol=0.01)


def test_kmeans_finds_the_centres_of_separate_clusters():
    truth = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    values, _ = make_blobs(400, centers=truth.numpy(), cluster_std=0.1, random_state=0)
    points = kmeans_points(torch.from_numpy(values), 4, seed=1)
    nearest = torch.cdist(truth.double(), points).min(dim=1).values
    assert nearest.max() < 0.1
    assert points.dtype == torch.float64


def test_kmeans_is_deterministic_and_follows_its_seed():
    inputs = torch.rand(300, 3, generator=torch.Generator().manual_seed(0))
    first = kmeans_points(inputs, 9, seed=3)
    torch.manual_seed(99)
    assert torch.equal(first, kmeans_points(inputs, 9, seed=3))
    assert not torch.equal(first, kmeans_points(inputs, 9, seed=4))
    assert first.dtype == torch.float32


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_fewer_distinct_inputs_than_points(distinct):
    corners = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]])[:distinct]
    inputs = corners.repeat(20, 1)
    points = kmeans_points(inputs, 8, seed=0)
    assert points.shape == (8, 2)
    # Every distinct input is a point, the others are near one, and no two coincide.
    assert torch.cdist(corners, points).min(dim=1).values.max() < 1e-6
    assert torch.cdist(points, corners).min(dim=1).values.max() < 0.3
    assert torch.pdist(points).min() > 0
    assert torch.equal(points, kmeans_points(inputs, 8, seed=0))


def test_one_instance():
    points = kmeans_points(torch.tensor([[0.3, 0.6]]), 3)
    assert torch.allclose(points[0], torch.tensor([0.3, 0.6]))
    assert points.isfinite().all()


def test_no_points_are_refused():
    with pytest.raises(SettingsError, match="at least one inducing point, but got 0"):
        kmeans_points(torch.rand(3, 2), 0)
