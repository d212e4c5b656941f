"""Novelty, compared with scikit-learn's neighbours, closed forms and simulations."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.neighbors import NearestNeighbors

from sgpmil.bags import Bag, BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.errors import CheckpointError
from sgpmil.models import build_model, load_model, save_model
from sgpmil.models.novelty import Novelty


def draw(
    rng: np.random.Generator, sizes: list[int], dim: int = 6, shift: float = 0.3, mean: float = 0.0
) -> BagBatch:
    """Draw slides with a Gaussian effect each."""
    bags = []
    for number, size in enumerate(sizes):
        centre = mean + rng.normal(scale=shift, size=dim)
        values = torch.from_numpy(rng.normal(size=(size, dim)) + centre)
        bags.append(Bag(values.float(), f"s{number}"))
    return BagBatch.pack(bags)


def fitted(sample: BagBatch, cases: list[str] | None = None, seed: int = 0) -> Novelty:
    found = Novelty()
    found.fit(sample, cases=cases, seed=seed)
    return found


def reference(
    points: np.ndarray, training: np.ndarray, owner: np.ndarray, order: np.ndarray, count: int = 64
) -> np.ndarray:
    """Distance to the rows of `order` of training features, by numpy and scikit-learn."""
    unit = np.quantile(training[order].std(axis=0), 0.5, method="lower")

    def scaled(values: np.ndarray) -> np.ndarray:
        return values / unit / np.sqrt(np.linalg.norm(values / unit, axis=1, keepdims=True))

    mean = scaled(training[order]).mean(axis=0)
    used = order[: len(order) // 4 * 4]
    y, kept, all_used = (scaled(v) - mean for v in (points, training[used], training[order]))
    _, _, rows = np.linalg.svd(all_used, full_matrices=False)
    parts = [v @ rows[:count].T for v in (y, kept)]
    rest = [(v**2).sum(1) - (c**2).sum(1) for v, c in zip((y, kept), parts, strict=True)]

    def distances(a: int, b: int) -> np.ndarray:
        within = ((parts[a][:, None] - parts[b][None]) ** 2).sum(2)
        return np.sqrt(np.maximum(within + rest[a][:, None] + rest[b], 0))

    between = distances(1, 1)
    spacing = np.empty(len(used))
    for row, number in enumerate(owner[used]):
        others = np.flatnonzero(owner[used] != number)
        search = NearestNeighbors(n_neighbors=5, metric="precomputed")
        search.fit(between[np.ix_(others, others)])
        spacing[row] = search.kneighbors(between[row, others][None])[0].mean()
    scaled_distances = distances(0, 1) / spacing**0.75
    return np.mean([group.min(axis=1) for group in np.split(scaled_distances, 4, axis=1)], axis=0)


def test_distance_and_level_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    sample = draw(rng, [30, 21, 25])
    new = rng.normal(size=(40, 6)) * 2
    novelty = fitted(sample)
    training, owner = sample.features.double().numpy(), np.repeat([0, 1, 2], [30, 21, 25])
    order = torch.randperm(76, generator=torch.Generator().manual_seed(0)).numpy()
    own = np.empty(76)
    for number in range(3):  # three patients are three folds
        others = order[owner[order] != number]
        own[owner == number] = reference(training[owner == number], training, owner, others)
    level = np.sort(own)[int(0.99 * 76)]
    expected = reference(new, training, owner, order) / level
    np.testing.assert_allclose(novelty(torch.from_numpy(new)).numpy(), expected, rtol=2e-4)
    assert float(novelty.level) == pytest.approx(level, rel=2e-4)


def test_outside_of_64_components_instances_count_as_orthogonal() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(400, 90)) * np.r_[np.full(64, 1.5), np.full(26, 1.0)]
    sample = BagBatch.pack(
        [Bag(torch.from_numpy(v).float(), f"s{i}") for i, v in enumerate(np.split(values, 4))]
    )
    novelty = fitted(sample)
    new = rng.normal(size=(5, 90))
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0)).numpy()
    found = (novelty(torch.from_numpy(new)) * novelty.level).numpy()
    owner = np.repeat(np.arange(4), 100)
    np.testing.assert_allclose(found, reference(new, values, owner, order), rtol=1e-4)
    exact = reference(new, values, owner, order, count=90)
    assert np.abs(found / exact - 1).max() > 0.01  # all components would give another distance


def test_the_unit_of_features_does_not_matter() -> None:
    rng = np.random.default_rng(10)
    sample, new = draw(rng, [40] * 6, mean=1.0), draw(rng, [40], mean=1.0)
    found = fitted(sample)(new.features)
    sample.features[:] *= 1000
    torch.testing.assert_close(fitted(sample)(1000 * new.features), found, rtol=1e-3, atol=0)


def test_training_instances_are_compared_with_other_patients() -> None:
    rng = np.random.default_rng(2)
    twins = draw(rng, [20] * 6)
    features = torch.cat([twins.features, twins.features])  # every slide was scanned twice
    sample = BagBatch.pack([Bag(f, f"s{i}") for i, f in enumerate(features.split(20))])
    by_slide = fitted(sample)
    by_patient = fitted(sample, cases=[f"p{i % 6}" for i in range(12)])
    assert float(by_patient.level) > float(by_slide.level)


def test_false_alarms_keep_their_rate_for_small_and_large_slides() -> None:
    sizes_of = {"small": (5, 20), "large": (60, 200), "mixed": (2, 200)}
    for number, (low, high) in enumerate(sizes_of.values()):
        alarms, total = 0, 0
        for seed in range(6):
            rng = np.random.default_rng([number, seed])
            novelty = fitted(draw(rng, rng.integers(low, high, size=60).tolist()), seed=seed)
            new = draw(rng, rng.integers(low, high, size=80).tolist())
            found = novelty.of_slides(novelty(new.features), new.offsets)
            alarms += sum(slide.p_value <= 0.1 for slide in found)
            total += len(found)
        # 480 slides at 10 %, of which those of a training set are not independent.
        assert 0.04 <= alarms / total <= 0.16


def test_few_slides_of_many_features_keep_their_rate() -> None:
    # Each slide has a direction of its own, which the components of all slides would contain.
    alarms, above = [], []
    for seed in range(5):
        rng = np.random.default_rng([9, seed])
        novelty = fitted(draw(rng, [20] * 40, dim=300, shift=0.5), seed=seed)
        new = draw(rng, [20] * 60, dim=300, shift=0.5)
        found = novelty(new.features)
        slides = novelty.of_slides(found, new.offsets)
        alarms.append(np.mean([slide.p_value <= 0.1 for slide in slides]))
        above.append(float((found > 1).float().mean()))
    assert 0.03 <= np.mean(alarms) <= 0.17
    assert 0.004 <= np.mean(above) <= 0.02


def test_slides_of_another_kind_are_found() -> None:
    rng = np.random.default_rng(3)
    novelty = fitted(draw(rng, [40] * 50))
    new = draw(rng, [40] * 20, mean=4.0)
    found = novelty.of_slides(novelty(new.features), new.offsets)
    assert [slide.p_value for slide in found] == [pytest.approx(1 / 51)] * 20
    assert min(slide.share for slide in found) > 0.9
    usual = draw(rng, [400] * 5)
    share = np.mean([s.share for s in novelty.of_slides(novelty(usual.features), usual.offsets)])
    assert 0 <= share < 0.04


def test_rows_of_a_matrix_give_what_their_bags_give() -> None:
    rng = np.random.default_rng(4)
    sample = draw(rng, [12, 5, 9])
    novelty = fitted(sample)
    order = torch.tensor([17, 0])  # the third bag, then the first
    segments = Segments.of(torch.tensor([0, 9, 21]))
    found = novelty.of_rows(sample.features, order, segments)
    expected = novelty(torch.cat([sample.features[17:], sample.features[:12]]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "sizes", [[1], [1, 1], [2, 1], [3], [1, 40]], ids=["one", "1+1", "2+1", "few", "1+40"]
)
def test_few_instances(sizes: list[int]) -> None:
    sample = draw(np.random.default_rng(5), sizes)
    novelty = fitted(sample)
    found = novelty(sample.features)
    assert torch.isfinite(found).all()
    for slide in novelty.of_slides(found, sample.offsets):
        assert 1 / (1 + len(sizes)) <= slide.p_value <= 1


def test_constant_features() -> None:
    same = [Bag(torch.full((4, 3), 2.0), f"s{i}") for i in range(4)]
    novelty = fitted(BagBatch.pack(same))
    batch = BagBatch.pack(same[:1])
    found = novelty(batch.features)
    assert (found == 0).all()
    assert novelty.of_slides(found, batch.offsets)[0].p_value == 1
    assert (novelty(torch.full((1, 3), 5.0)) > 1).all()


def test_one_feature_of_another_unit_does_not_outweigh_the_others() -> None:
    rng = np.random.default_rng(6)
    sample = draw(rng, [50] * 10, dim=8)
    sample.features[:, 0] *= 1e4
    new = draw(rng, [50] * 4, dim=8)
    new.features[:, 0] *= 1e4
    far = new.features.clone()
    far[:, 1:] += 4
    novelty = fitted(sample)
    assert float(novelty(far).min()) > float(novelty(new.features).median())


def test_the_same_seed_gives_the_same_and_features_are_not_clamped() -> None:
    sample = draw(np.random.default_rng(7), [900, 900])
    one, two, other = fitted(sample), fitted(sample), fitted(sample, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))
    assert not torch.equal(one.kept, other.kept)
    far = torch.tensor([[10.0] * 6, [100.0] * 6])
    near, distant = one(far).tolist()
    assert distant > 2.5 * near  # lengths count by their root


def test_checkpoint_holds_novelty_and_earlier_ones_have_none(tmp_path: Path) -> None:
    sample = draw(np.random.default_rng(8), [30, 20, 10])
    model = build_model("abmil", in_dim=6, num_classes=2)
    assert not model.novelty.is_fitted
    save_model(model, tmp_path / "earlier.safetensors")
    assert not any("novelty" in name for name in load_file(tmp_path / "earlier.safetensors"))
    assert not load_model(tmp_path / "earlier.safetensors")[0].novelty.is_fitted
    model.novelty.fit(sample)
    path = save_model(model, tmp_path / "model.safetensors")
    loaded, _ = load_model(path)
    torch.testing.assert_close(loaded.novelty(sample.features), model.novelty(sample.features))
    assert loaded.novelty.num_slides == 3
    tensors = load_file(path)
    del tensors["novelty.kept"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"novelty\.kept"):
        load_model(path)
    # What an earlier definition kept is not taken for that of this one.
    save_file({**tensors, "novelty.spacing": torch.ones(60)}, path)
    assert not load_model(path)[0].novelty.is_fitted
    # Weights without novelty leave that of the model as it is: a resumed fold has fitted it.
    plain = {name: v for name, v in model.state_dict().items() if "novelty" not in name}
    model.load_state_dict(plain)
    assert model.novelty.is_fitted


def test_a_double_model_computes_in_double() -> None:
    sample = draw(np.random.default_rng(9), [30, 20])
    novelty = fitted(sample).double()
    assert novelty(sample.features).dtype == torch.float64
