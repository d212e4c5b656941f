from collections import Counter

import numpy as np
import torch

from sgpmil.bags.bag import Bag
from sgpmil.explanation.prototypes.examples import ExamplePatches
from sgpmil.explanation.prototypes.similarity import SlidePrototypes


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
