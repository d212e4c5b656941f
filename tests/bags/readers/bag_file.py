"""The bag of one file."""

from pathlib import Path

from sgpmil.bags.bag import Bag
from sgpmil.bags.readers.formats import read_raw


def read_bag(path: Path) -> Bag:
    return read_raw(path).to_bag(path.stem, path)
