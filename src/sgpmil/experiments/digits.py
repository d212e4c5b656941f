"""Bags of real handwritten digits: the data of the demo.

The 1,797 digits of 8×8 pixels that scikit-learn ships (UCI optical recognition). A bag is
positive when it holds the target digit, so the label of every instance is known. No digit is in
two bags: folds over bags share no image.
"""

import numpy as np

from sgpmil.bags.dataset import BagDataset

__all__ = ["IMAGE_SIDE", "digit_bags"]

IMAGE_SIDE = 8


def digit_bags(
    *, target: int = 9, bag_size: int = 9, num_bags: int = 180, seed: int = 0
) -> BagDataset:
    """Deal digits into bags, half of them with one or two of the target digit.

    Args:
        target: The digit that makes a bag positive.
        bag_size: Digits of a bag.
        num_bags: Number of bags; scikit-learn's digits suffice for 180 of nine.
        seed: Seed of the dealing.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(data.target))
    targets = [i for i in order if data.target[i] == target]
    others = [i for i in order if data.target[i] != target]
    features, labels, instance_labels, coords = [], [], [], []
    for number in range(num_bags):
        positive = number % 2
        count = int(generator.integers(1, 3)) if positive else 0
        chosen = [targets.pop() for _ in range(count)]
        chosen += [others.pop() for _ in range(bag_size - count)]
        chosen = generator.permutation(chosen).tolist()
        features.append(data.data[chosen].astype(np.float32))
        labels.append(positive)
        instance_labels.append((data.target[chosen] == target).astype(np.int64))
        columns = int(np.ceil(np.sqrt(bag_size)))
        grid = [(IMAGE_SIDE * (k % columns), IMAGE_SIDE * (k // columns)) for k in range(bag_size)]
        coords.append(np.array(grid))
    return BagDataset.from_arrays(
        features,
        labels,
        slide_ids=[f"digits-{number:03d}" for number in range(num_bags)],
        class_names=(f"no {target}", f"has a {target}"),
        instance_labels=instance_labels,
        coords=coords,
    )
