import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import NEUTRAL, Nuclei, attention_parts, explain_prototypes
from tests.explanation.prototypes.explained import attention_scores, labelled_bags, spread_model


@pytest.fixture(scope="module")
def model():
    return spread_model()


@torch.no_grad()
def table_of(model, bags, scores, explanation) -> pd.DataFrame:
    """All that is known of each patch, in the long form that pandas groups."""
    frames = []
    for bag in bags:
        inputs = model.gp_inputs(model.embed(bag.features))
        parts = attention_parts(model.gp, inputs)
        slide = explanation.slides[bag.slide_id]
        attention = scores[bag.slide_id].attention_mean
        frames.append(
            pd.DataFrame(
                {
                    "slide": bag.slide_id,
                    "prototype": slide.assigned,
                    "label": bag.instance_labels.numpy(),
                    "attention": attention,
                    "relative": attention * len(attention),
                    "logit": model.attention_posterior(bag.features)[0].numpy(),
                    "own": parts.contributions.numpy()[
                        slide.assigned, np.arange(bag.num_instances)
                    ],
                }
            )
        )
    return pd.concat(frames)


def test_every_summary_is_what_pandas_makes_of_the_patches(model):
    bags = labelled_bags()
    scores = attention_scores(bags)
    explanation = explain_prototypes(model, bags, scores=scores, measure="kernel")
    table = table_of(model, bags, scores, explanation)
    groups = dict(iter(table.groupby("prototype")))
    assert {p.index for p in explanation.used} == set(groups)
    assert len(groups) > 3
    for summary in explanation.used:
        own = groups[summary.index]
        known = own[own.label >= 0]
        assert summary.num_patches == len(own)
        assert summary.num_slides == own.slide.nunique()
        assert summary.num_labelled == len(known)
        assert summary.num_cancerous == (known.label > 0).sum()
        if len(known):
            assert summary.cancer_share() == pytest.approx((known.label > 0).mean())
        assert summary.mean_attention == pytest.approx(own.attention.mean())
        assert summary.relative_attention == pytest.approx(own.relative.mean())
        assert summary.logit_mean == pytest.approx(own.logit.mean())
        assert summary.own_contribution == pytest.approx(own.own.mean())
    assert explanation.mean_logit == pytest.approx(table.logit.mean())
    assert explanation.num_patches == len(table)
    assert explanation.num_unlabelled == (table.label < 0).sum() > 0


def test_contributions_to_all_patches_and_the_prior_mean_give_the_mean_logit(model):
    bags = labelled_bags()
    explanation = explain_prototypes(model, bags)
    with torch.no_grad():
        prior = torch.cat([model.gp.mean(model.gp_inputs(model.embed(b.features))) for b in bags])
    total = sum(p.overall_contribution for p in explanation.prototypes) + float(prior.mean())
    assert total == pytest.approx(explanation.mean_logit, abs=1e-9)


@torch.no_grad()
def test_the_logit_at_a_prototype_is_the_posterior_there(model):
    posterior = model.gp.posterior(model.gp.inducing_points)
    for summary in explain_prototypes(model, labelled_bags()).prototypes:
        assert summary.logit_at == pytest.approx(float(posterior.mean[summary.index]))
        assert summary.logit_at_sd == pytest.approx(float(posterior.variance[summary.index]) ** 0.5)


def test_the_most_used_come_first_and_the_unused_are_counted():
    model = spread_model()
    with torch.no_grad():
        model.gp.inducing_points[4:] = -5.0  # the opposite of every patch
    explanation = explain_prototypes(model, labelled_bags())
    counts = [p.num_patches for p in explanation.prototypes]
    assert counts == sorted(counts, reverse=True)
    assert sorted(p.index for p in explanation.prototypes) == list(range(9))
    assert explanation.unused >= 5
    assert explanation.unused == counts.count(0)
    idle = explanation.prototypes[-1]
    assert math.isnan(idle.mean_attention)
    assert math.isnan(idle.logit_mean)
    assert math.isnan(idle.cancer_share())
    assert idle.examples == ()
    # It acts all the same.
    assert np.isfinite(idle.overall_contribution)


def test_equal_use_keeps_the_order_of_the_inducing_points(model):
    order = [p.index for p in explain_prototypes(model, labelled_bags((1,))).prototypes]
    assert order[1:] == sorted(order[1:])


def test_few_labels_give_no_share(model):
    bags = labelled_bags()
    summary = explain_prototypes(model, bags).used[0]
    assert np.isfinite(summary.cancer_share(summary.num_labelled))
    assert math.isnan(summary.cancer_share(summary.num_labelled + 1))


def test_labels_of_the_scores_come_before_those_of_the_bags(model):
    bags = labelled_bags((20,))
    scores = attention_scores(bags)
    annotated = replace(scores["s0"], instance_labels=np.ones(20, dtype=np.int64))
    by_scores = explain_prototypes(model, bags, scores={"s0": annotated})
    assert all(p.cancer_share() == 1 for p in by_scores.used)
    by_bags = explain_prototypes(model, bags, scores=scores)
    assert by_bags.num_unlabelled == int((bags[0].instance_labels < 0).sum()) > 0


def test_without_scores_attention_is_unknown_and_the_rest_stays(model):
    bags = labelled_bags()
    with_scores = explain_prototypes(model, bags, scores=attention_scores(bags))
    without = explain_prototypes(model, bags)
    for one, other in zip(with_scores.prototypes, without.prototypes, strict=True):
        assert math.isnan(other.relative_attention)
        assert one.examples == other.examples
        assert one.num_cancerous == other.num_cancerous


def test_scores_of_some_slides_are_averaged_over_those(model):
    bags = labelled_bags()
    scores = attention_scores(bags)
    some = explain_prototypes(model, bags, scores={"s0": scores["s0"]})
    alone = {p.index: p for p in explain_prototypes(model, bags[:1], scores=scores).prototypes}
    for summary in some.prototypes:
        expected = alone[summary.index].relative_attention
        assert summary.relative_attention == pytest.approx(expected, nan_ok=True)


def test_a_slide_is_explained_alike_in_any_company(model):
    bags = labelled_bags()
    together = explain_prototypes(model, bags[::-1], measure="kernel")
    for bag in bags:
        alone = explain_prototypes(model, [bag], measure="kernel").slides[bag.slide_id]
        same = together.slides[bag.slide_id]
        np.testing.assert_array_equal(alone.assigned, same.assigned)
        np.testing.assert_array_equal(alone.similarity, same.similarity)


def test_the_order_of_slides_changes_no_colour(model):
    bags = labelled_bags()
    assert explain_prototypes(model, bags).colours == explain_prototypes(model, bags[::-1]).colours


def test_colours_follow_the_rank_of_use(model):
    explanation = explain_prototypes(model, labelled_bags())
    first = explanation.used[0]
    assert explanation.colour_of(first.index) == "#88CCEE"
    assert explanation.summary(first.index) is first
    assert explanation.colour_of(99) == NEUTRAL
    with pytest.raises(ExplanationError, match="from 0 to 8, but got 99"):
        explanation.summary(99)


def test_nuclei_are_summed_over_the_patches_of_a_prototype(model):
    bags = labelled_bags((12, 8))
    rng = np.random.default_rng(1)
    found = {
        "s0": Nuclei(rng.uniform(0, 30, (200, 2)), rng.integers(0, 2, 200), ("A", "B")),
        "s1": Nuclei(rng.uniform(0, 30, (100, 2)), rng.integers(0, 2, 100), ("B", "C")),
    }
    explanation = explain_prototypes(model, bags, nuclei=found.get)
    assert explanation.nucleus_types == ("A", "B", "C")
    for summary in explanation.prototypes:
        counts = dict.fromkeys("ABC", 0)
        for bag in bags:
            nuclei = found[bag.slide_id]
            numbers = explanation.slides[bag.slide_id].assigned
            for x, y in bag.coords.numpy()[numbers == summary.index]:
                for (u, v), kind in zip(nuclei.centroids, nuclei.types, strict=True):
                    if x <= u < x + 10 and y <= v < y + 10:
                        counts[nuclei.type_names[kind]] += 1
        assert summary.nuclei == tuple(counts.values())


def test_a_slide_without_nuclei_is_passed_over(model):
    explanation = explain_prototypes(model, labelled_bags(), nuclei=lambda _: None)
    assert explanation.nucleus_types == ()
    assert explanation.prototypes[0].nuclei == ()


def test_on_slide_hears_of_every_slide(model):
    heard: list[str] = []
    explain_prototypes(model, labelled_bags(), on_slide=heard.append)
    assert heard == ["s0", "s1", "s2"]


def test_what_does_not_fit_is_refused(model):
    bags = labelled_bags()
    nuclei = Nuclei(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), ())
    bare = [Bag(bag.features, bag.slide_id) for bag in bags]
    scores = {"s0": attention_scores(bags)["s1"]}
    cases = [
        ("of the 40 patches of 's0', but got 7", {"bags": bags, "scores": scores}),
        ("got 's0' twice", {"bags": [bags[0], bags[0]]}),
        ("at least one slide", {"bags": []}),
        ("read twice", {"bags": iter(bags), "measure": "centred"}),
        ("to count nuclei", {"bags": bare, "nuclei": lambda _: nuclei}),
        ("at least one example", {"bags": bags, "top": 0}),
    ]
    for message, arguments in cases:
        with pytest.raises(ExplanationError, match=message):
            explain_prototypes(model, **arguments)
