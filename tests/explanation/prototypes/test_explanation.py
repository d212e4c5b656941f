import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PALETTE,
    Nuclei,
    attention_parts,
    explain_prototypes,
    read_prototypes,
    write_prototype_table,
    write_prototypes,
)
from sgpmil.explanation.prototypes.examples import ExamplePatches
from sgpmil.explanation.prototypes.similarity import SlidePrototypes
from tests.explanation.prototypes.explained import attention_scores, labelled_bags, spread_model


@pytest.fixture(scope="module")
def model():
    return spread_model()


@torch.no_grad()
def table_of(model, bags, scores, explanation) -> pd.DataFrame:
    """All that is known of each patch, in the long form that pandas groups."""
    frames = []
    for bag in bags:
        inputs = model.gp_inputs(bag.features)
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
        assert summary.num_positive == (known.label > 0).sum()
        if len(known):
            assert summary.positive_share() == pytest.approx((known.label > 0).mean())
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
        prior = torch.cat([model.gp.mean(model.gp_inputs(b.features)) for b in bags])
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
    assert math.isnan(idle.positive_share())
    assert idle.examples == ()
    # It acts all the same.
    assert np.isfinite(idle.overall_contribution)


def test_equal_use_keeps_the_order_of_the_inducing_points(model):
    order = [p.index for p in explain_prototypes(model, labelled_bags((1,))).prototypes]
    assert order[1:] == sorted(order[1:])


def test_few_labels_give_no_share(model):
    bags = labelled_bags()
    summary = explain_prototypes(model, bags).used[0]
    assert np.isfinite(summary.positive_share(summary.num_labelled))
    assert math.isnan(summary.positive_share(summary.num_labelled + 1))


def test_labels_of_the_scores_come_before_those_of_the_bags(model):
    bags = labelled_bags((20,))
    scores = attention_scores(bags)
    annotated = replace(scores["s0"], instance_labels=np.ones(20, dtype=np.int64))
    by_scores = explain_prototypes(model, bags, scores={"s0": annotated})
    assert all(p.positive_share() == 1 for p in by_scores.used)
    by_bags = explain_prototypes(model, bags, scores=scores)
    assert by_bags.num_unlabelled == int((bags[0].instance_labels < 0).sum()) > 0


def test_without_scores_attention_is_unknown_and_the_rest_stays(model):
    bags = labelled_bags()
    with_scores = explain_prototypes(model, bags, scores=attention_scores(bags))
    without = explain_prototypes(model, bags)
    for one, other in zip(with_scores.prototypes, without.prototypes, strict=True):
        assert math.isnan(other.relative_attention)
        assert one.examples == other.examples
        assert one.num_positive == other.num_positive


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
    # Few enough for a colour each.
    assert [p.colour for p in explanation.used] == list(PALETTE[: len(explanation.used)])
    assert {p.colour for p in explanation.prototypes if not p.num_patches} <= {NEUTRAL}


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


# How the three kinds of colour-blind see linear RGB (Machado, Oliveira and Fernandes, 2009).
EYES = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(colour: str, eye) -> np.ndarray:
    code = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    seen = TO_XYZ @ np.clip(np.asarray(eye) @ linear, 0, 1) / WHITE
    f = np.where(seen > 216 / 24389, np.cbrt(seen), (24389 / 27 * seen + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_two_colours_differ_for_every_eye():
    for eye in EYES.values():
        for one, other in combinations([*PALETTE, NEUTRAL, "#FFFFFF"], 2):
            assert np.linalg.norm(lab(one, eye) - lab(other, eye)) > 20


@pytest.fixture(scope="module")
def explanation():
    import numpy as np

    bags = labelled_bags()
    rng = np.random.default_rng(0)
    nuclei = Nuclei(rng.uniform(0, 40, (50, 2)), rng.integers(0, 2, 50), ("Dead", "Connective"))
    return explain_prototypes(
        spread_model(), bags, scores=attention_scores(bags), nuclei=lambda _: nuclei
    )


def test_pandas_reads_what_was_found(explanation, tmp_path):
    write_prototype_table(tmp_path / "a" / "prototypes.csv", explanation)
    table = pd.read_csv(tmp_path / "a" / "prototypes.csv")
    assert table["prototype"].tolist() == [p.index for p in explanation.prototypes]
    assert table["rank"].tolist() == list(range(1, 10))
    assert table["colour"].tolist() == [p.colour for p in explanation.prototypes]
    assert table["share"].sum() == pytest.approx(1)
    assert table["origin_slide"].isna().all()  # free points come from nowhere
    for row, summary in zip(table.itertuples(), explanation.prototypes, strict=True):
        assert row.patches == summary.num_patches
        assert row.positive_share == pytest.approx(summary.positive_share(), abs=1e-5, nan_ok=True)
        assert row.logit_at_prototype == pytest.approx(summary.logit_at, rel=1e-5)
        assert row.relative_attention == pytest.approx(
            summary.relative_attention, rel=1e-5, nan_ok=True
        )
        assert (row.nuclei_Dead, row.nuclei_Connective) == summary.nuclei
    best = explanation.used[0].examples[0]
    assert table["examples"][0].split()[0] == f"{best.slide_id}:{best.instance}"


def test_shares_of_few_labels_are_left_empty(explanation, tmp_path):
    write_prototype_table(tmp_path / "p.csv", explanation, fewest_labelled=10**6)
    assert pd.read_csv(tmp_path / "p.csv")["positive_share"].isna().all()


def test_nothing_is_left_of_a_file_that_cannot_be_written(explanation, tmp_path):
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(OSError, match=r"p\.csv"):
        write_prototype_table(tmp_path / "p.csv", explanation)
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def random_slides(num_slides, num_patches, num_prototypes, *, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(num_slides):
        similarity = rng.uniform(size=num_patches)
        if ties:
            similarity = similarity.round(1)
        bag = Bag(
            torch.ones(num_patches, 1),
            f"s{number}",
            coords=torch.from_numpy(rng.integers(0, 999, (num_patches, 2))),
            patch_size=7,
        )
        assigned = rng.integers(0, num_prototypes, num_patches).astype(np.int32)
        pairs.append((bag, SlidePrototypes(bag.slide_id, assigned, similarity)))
    return pairs


def chosen_by_hand(pairs, number, most, most_a_slide):
    """Sort all patches at once, take the spread ones, and fill up."""
    rows = sorted(
        (-float(slide.similarity[i]), bag.slide_id, int(i))
        for bag, slide in pairs
        for i in np.flatnonzero(slide.assigned == number)
    )
    spread, seen = [], Counter()
    for row in rows:
        seen[row[1]] += 1
        if seen[row[1]] <= most_a_slide:
            spread.append(row)
    spread = spread[:most]
    rest = [row for row in rows if row not in spread]
    return [(row[1], row[2]) for row in sorted(spread + rest[: most - len(spread)])]


def test_streaming_chooses_as_sorting_everything_does():
    for seed in range(12):
        for most, most_a_slide in ((7, 2), (3, 1), (5, 9)):
            pairs = random_slides(1 + seed, 15, 4, seed=seed, ties=seed % 2 == 0)
            examples = ExamplePatches(4, most, most_a_slide)
            for bag, slide in pairs:
                examples.add(bag, slide)
            for number in range(4):
                found = [(p.slide_id, p.instance) for p in examples.best(number)]
                assert found == chosen_by_hand(pairs, number, most, most_a_slide)


def test_no_slide_has_more_than_its_share_while_others_have_some():
    pairs = random_slides(10, 40, 2)
    examples = ExamplePatches(2, 7, 2)
    for bag, slide in pairs:
        examples.add(bag, slide)
    best = examples.best(0)
    assert len(best) == 7
    assert max(Counter(p.slide_id for p in best).values()) <= 2


def test_a_single_slide_fills_all_places():
    (pair,) = random_slides(1, 40, 1)
    examples = ExamplePatches(1, 7, 2)
    examples.add(*pair)
    order = np.argsort(-pair[1].similarity)[:7]
    assert [p.instance for p in examples.best(0)] == order.tolist()


def test_a_patch_says_where_it_is():
    bag, slide = random_slides(1, 5, 1)[0]
    examples = ExamplePatches(1, 1, 1)
    examples.add(bag, slide)
    (patch,) = examples.best(0)
    assert patch.corner == tuple(bag.coords[patch.instance].tolist())
    assert patch.side == 7
    assert patch.similarity == slide.similarity.max()
    bare = ExamplePatches(1, 1, 1)
    bare.add(Bag(bag.features, "b"), slide)
    assert bare.best(0)[0].corner is None


def test_prototypes_are_read_as_they_were_written(tmp_path, model):
    bags = labelled_bags()
    found = Nuclei(np.array([[1.0, 1.0]]), np.array([0]), ("A",))
    written = explain_prototypes(
        model, bags, scores=attention_scores(bags[:1]), nuclei=lambda name: found
    )
    write_prototypes(tmp_path / "prototypes.npz", written)
    read = read_prototypes(tmp_path / "prototypes.npz")
    assert repr(read.prototypes) == repr(written.prototypes)  # NaN is not equal to itself
    assert (read.measure, read.mean_logit) == (written.measure, written.mean_logit)
    assert read.nucleus_types == written.nucleus_types == ("A",)
    assert list(read.slides) == list(written.slides)
    for slide_id, own in written.slides.items():
        np.testing.assert_array_equal(read.slides[slide_id].assigned, own.assigned)
        np.testing.assert_array_equal(read.slides[slide_id].similarity, own.similarity)
        assert read.slides[slide_id].similarity.dtype == own.similarity.dtype


@pytest.mark.parametrize("content", [None, b"", b"PK broken", b"{}"])
def test_prototypes_that_cannot_be_read_are_refused(tmp_path, content):
    path = tmp_path / "prototypes.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExplanationError, match="cannot be read"):
        read_prototypes(path)
