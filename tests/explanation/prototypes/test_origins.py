import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.predictor import predict
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PALETTE,
    PatchReference,
    attention_parts,
    explain_prototypes,
    mean_inputs,
    read_prototypes,
    write_prototype_table,
    write_prototypes,
)
from sgpmil.explanation.prototypes.examples import ExamplePatches
from sgpmil.explanation.prototypes.similarity import (
    SlidePrototypes,
    gp_in_double,
    group_points,
    prototype_weights,
)
from tests.explanation.prototypes.explained import (
    PATCHES,
    attention_scores,
    labelled_bags,
    patch_model,
)
from tests.models.small import random_bags, small_model


@pytest.fixture(scope="module")
def model():
    return patch_model()


@torch.no_grad()
def points_of(model):
    return model.gp_inputs(model.patches.features).numpy()


@torch.no_grad()
def parts_by_hand(model, features):
    """Solve the unwhitened system with numpy: k(x, z_m) alpha_m, alpha = K_ZZ^-1 (u - mu)."""
    z, x = points_of(model), model.gp_inputs(features).numpy()
    scale = float(model.gp.kernel.outputscale)
    length = float(model.gp.kernel.base_kernel.lengthscale)

    def kernel(a, b):
        return scale * np.exp(-(cdist(a, b) ** 2) / (2 * length**2))

    K = kernel(z, z) + model.gp.jitter * np.eye(len(z))
    u_less_mean = np.linalg.cholesky(K) @ model.gp.whitened_mean.numpy()
    return kernel(z, x) * np.linalg.solve(K, u_less_mean)[:, None]


@torch.no_grad()
def test_parts_are_numpys_and_sum_to_the_logit_less_the_mean(model):
    features = labelled_bags()[0].features
    expected = parts_by_hand(model, features)
    gp = gp_in_double(model)
    parts = attention_parts(gp, model.gp_inputs(features))
    np.testing.assert_allclose(parts.contributions.numpy(), expected, atol=1e-8)
    logit, _ = model.attention_posterior(features)
    mean = float(model.gp.mean.constant)
    np.testing.assert_allclose(expected.sum(0), logit.numpy() - mean, atol=1e-5)
    assert prototype_weights(gp).abs().min() > 0


def test_parts_in_the_attention_are_weighted_sums_that_add_up(model):
    bags = labelled_bags()
    scores = attention_scores(bags)
    found = explain_prototypes(model, bags, scores=scores)
    expected = np.zeros(9)
    gap = 0.0
    for bag in bags:
        attention = scores[bag.slide_id].attention_mean
        excess = attention / attention.sum() - 1 / bag.num_instances
        expected += parts_by_hand(model, bag.features) @ excess / len(bags)
        with torch.no_grad():
            gap += model.attention_posterior(bag.features)[0].numpy() @ excess / len(bags)
    for summary in found.prototypes:
        assert summary.attention_part == pytest.approx(expected[summary.index], abs=1e-8)
    assert found.attention_gap == pytest.approx(gap, abs=1e-8)
    assert sum(p.attention_part for p in found.prototypes) == pytest.approx(gap, abs=1e-6)
    assert abs(gap) > 1e-3
    assert math.isnan(explain_prototypes(model, bags).attention_gap)


def test_each_prototype_is_the_training_patch_that_it_names(model):
    training = {
        f"t{number}": bag
        for number, bag in enumerate(random_bags((30, 12, 20), seed=5, dtype=torch.float64))
    }
    found = explain_prototypes(model, labelled_bags(), patch_size={"t0": 10, "t1": 20}.get)
    assert found.are_patches
    for summary in found.prototypes:
        origin = summary.origin
        own = model.patches.features[summary.index]
        torch.testing.assert_close(training[origin.slide_id].features[origin.instance], own)
        assert origin.corner == tuple(training[origin.slide_id].coords[origin.instance].tolist())
        assert origin.side == {"t0": 10, "t1": 20}.get(origin.slide_id)
    assert len({p.origin for p in found.prototypes}) == 9


def test_shares_count_the_patches_nearest_to_each(model):
    bags = labelled_bags()
    found = explain_prototypes(model, bags)
    with torch.no_grad():
        inputs = np.concatenate([model.gp_inputs(bag.features).numpy() for bag in bags])
    nearest = cdist(inputs, points_of(model)).argmin(1)
    for summary in found.prototypes:
        assert found.share(summary) == pytest.approx((nearest == summary.index).mean())


def test_single_is_what_the_model_says_of_a_bag_of_the_patch_alone(model):
    (bag,) = random_bags((9,), dtype=torch.float64)
    alone = [
        replace(bag, features=row[None], slide_id=f"p{number}", coords=bag.coords[:1])
        for number, row in enumerate(model.patches.features)
    ]
    expected = [p.instances for p in predict(model, alone).predictions]
    found = explain_prototypes(model, labelled_bags())
    for summary in found.prototypes:
        own = expected[summary.index]
        assert summary.single == pytest.approx(own.single_mean[0], rel=1e-5)
        assert summary.single_sd == pytest.approx(own.single_std[0], rel=1e-5)
        assert min(summary.single_sd) > 0
    assert found.class_names == model.target.names


def test_the_centred_cosine_takes_all_inputs(model):
    bags = labelled_bags()
    with torch.no_grad():
        inputs = np.concatenate([model.gp_inputs(bag.features).numpy() for bag in bags])
    centre = mean_inputs(model, bags)
    np.testing.assert_allclose(centre, inputs.mean(0), atol=1e-9)
    found = explain_prototypes(model, bags, measure="centred")
    expected = cdist(inputs - centre, points_of(model) - centre, "cosine").argmin(1)
    numbers = np.concatenate([slide.assigned for slide in found.slides.values()])
    np.testing.assert_array_equal(numbers, expected)


def test_patches_that_were_never_chosen_are_refused():
    untrained = small_model("sgpmil", **PATCHES)
    with pytest.raises(ExplanationError, match="patches were never chosen"):
        explain_prototypes(untrained, random_bags())


def test_the_slide_of_a_prototype_gives_no_example():
    (bag,) = random_bags((6,))
    slide = SlidePrototypes("s0", np.array([0, 0, 0, 1, 1, 1], dtype=np.int32), np.ones(6))
    origins = (PatchReference("s0", 0, 1.0), PatchReference("elsewhere", 0, 1.0))
    examples = ExamplePatches(2, 7, 2, origins)
    examples.add(bag, slide)
    assert examples.best(0) == ()
    assert [patch.instance for patch in examples.best(1)] == [3, 4, 5]


def test_points_that_lie_together_are_a_group():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 60)
    points = rng.normal(size=(4, 5))[true] * 20 + rng.normal(size=(60, 5))
    found = group_points(points, 4)
    assert len(set(zip(true.tolist(), found.tolist(), strict=True))) == 4
    assert sorted(set(found.tolist())) == [0, 1, 2, 3]
    np.testing.assert_array_equal(group_points(points[:4], 4), np.arange(4))


def test_many_prototypes_share_colours_by_group_and_none_in_use_is_grey():
    model = patch_model(num_patches=30)
    found = explain_prototypes(model, labelled_bags((300, 200)))
    assert len(found.used) > len(PALETTE) == len(found.groups)
    sizes = [sum(p.num_patches for p in group) for group in found.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 500
    for rank, group in enumerate(found.groups):
        assert {p.colour for p in group} == {PALETTE[rank]}
        counts = [p.num_patches for p in group]
        assert counts == sorted(counts, reverse=True)
    assert all(p.colour == NEUTRAL for p in found.prototypes if not p.num_patches)


def test_no_two_prototypes_share_a_colour_on_a_slide():
    bags = labelled_bags((300, 200))
    found = explain_prototypes(patch_model(num_patches=30), bags)
    for bag in bags:
        colours = found.colours_on(bag.slide_id)
        counts = np.bincount(found.slides[bag.slide_id].assigned, minlength=30)
        assert set(colours) == set(found.colours)
        named = [index for index, colour in colours.items() if colour != NEUTRAL]
        assert (counts > 0).sum() > len(PALETTE) == len(named)
        assert {colours[index] for index in named} == set(PALETTE)
        assert counts[named].min() >= np.delete(counts, named).max()
        first = max(named, key=lambda index: (counts[index], -index))
        assert colours[first] == found.colours[first]
    assert found.colours_on("of another fold") == found.colours


def test_typical_prototypes_stand_for_every_group_and_then_for_the_attention():
    model = patch_model(num_patches=30)
    bags = labelled_bags((300, 200))
    found = explain_prototypes(model, bags, scores=attention_scores(bags))
    first = {group[0].index for group in found.groups}
    assert {p.index for p in found.typical(10)} == first
    shown = found.typical(13)
    added = {p.index for p in shown} - first
    others = [p for p in found.used if p.index not in first]
    by_part = sorted(others, key=lambda p: -abs(p.attention_part))
    assert added == {p.index for p in by_part[:3]}
    ranks = [p.group for p in shown]
    assert ranks == sorted(ranks)
    assert len(found.typical(100)) == len(found.used)


def test_files_hold_origins_and_log_odds(model, tmp_path):
    bags = labelled_bags()
    written = explain_prototypes(
        model, bags, scores=attention_scores(bags), patch_size=lambda _: 10
    )
    write_prototypes(tmp_path / "p.npz", written)
    read = read_prototypes(tmp_path / "p.npz")
    assert repr(read.prototypes) == repr(written.prototypes)
    assert (read.attention_gap, read.class_names) == (written.attention_gap, written.class_names)
    write_prototype_table(tmp_path / "p.csv", written)
    table = pd.read_csv(tmp_path / "p.csv").set_index("prototype")
    for summary in written.prototypes:
        row = table.loc[summary.index]
        origin = summary.origin
        assert (row.origin_slide, row.origin_row) == (origin.slide_id, origin.instance)
        assert (row.origin_x, row.origin_y) == origin.corner
        assert row.attention_part == pytest.approx(summary.attention_part, rel=1e-5)
        for name, value in zip(written.class_names, summary.single, strict=True):
            assert row[f"single_{name}"] == pytest.approx(value, rel=1e-5)
    assert table["share"].sum() == pytest.approx(1)


def test_origins_without_coordinates_have_no_place(tmp_path):
    model = small_model("sgpmil", **PATCHES)
    bags = [replace(bag, coords=None, patch_size=None) for bag in random_bags()]
    model.start_epoch(0, epochs=1, batches=[BagBatch.pack(bags)], num_bags=4, seed=0)
    found = explain_prototypes(model, labelled_bags(dtype=torch.float32))
    assert {p.origin.corner for p in found.prototypes} == {None}
    write_prototype_table(tmp_path / "p.csv", found)
    assert pd.read_csv(tmp_path / "p.csv")["origin_x"].isna().all()
