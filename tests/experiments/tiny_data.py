"""Small data sets on disk in the layout of the real ones."""

import csv
import gzip
import struct

import h5py
import numpy as np

from sgpmil.bags import make_kfold, read_labels, write_splits
from sgpmil.experiments.mnist import MNIST_FILES


def write_idx(path, array, magic=None):
    array = np.asarray(array, np.uint8)
    header = struct.pack(f">{1 + array.ndim}I", magic or 0x800 + array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def write_mnist(folder, num_train=400, num_test=200):
    """Images that show nothing but their own number (two pixels), their source and their digit."""
    for source, count in (("train", num_train), ("test", num_test)):
        images = np.zeros((count, 28, 28), np.uint8)
        numbers, digits = np.arange(count), np.arange(count) % 10
        images[:, 0, 0], images[:, 0, 1] = numbers // 250, numbers % 250
        images[:, 0, 2], images[:, 0, 3] = 255 * (source == "test"), digits
        image_file, label_file = MNIST_FILES[source]
        write_idx(folder / image_file, images)
        write_idx(folder / label_file, digits)


def write_classic(path, num_bags=40, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, num_bags)
    labels = np.arange(num_bags) % 2
    features = rng.normal(size=(sizes.sum(), 5)) + 2 * np.repeat(labels, sizes)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        features=features.astype(np.float32),
        offsets=np.concatenate([[0], sizes.cumsum()]),
        labels=labels,
    )


def write_colon(folder, num_bags=24, num_folds=2):
    """Bags in TRIDENT's layout with instance labels; positive ones are larger."""
    rng = np.random.default_rng(1)
    (folder / "features").mkdir(parents=True)
    rows = [("slide_id", "case_id", "label")]
    for number in range(num_bags):
        positive = number % 2
        size = 4 + number % 3 + 2 * positive
        witness = (np.arange(size) < 2) & bool(positive)
        x = rng.normal(size=(size, 6)) + 3 * witness[:, None]
        with h5py.File(folder / "features" / f"img{number}.h5", "w") as file:
            file["features"] = x.astype(np.float32)
            file["coords"] = 48 * np.arange(2 * size).reshape(size, 2)
            file["instance_labels"] = witness.astype(np.int64)
        rows.append((f"img{number}", f"img{number}", "epithelium" if positive else "no_epithelium"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    folds = make_kfold(read_labels(folder / "labels.csv"), num_folds=num_folds, seed=0)
    write_splits(folds, folder / "splits")
