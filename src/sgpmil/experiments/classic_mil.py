"""The classic data sets of multiple instance learning: two of molecules, three of pictures.

A bag is a molecule in several shapes, of which one may be a musk, or a picture in segments, of
which one may show the animal. The sets are small (92 to 200 bags): a fold tests on 9 to 20 bags, so
only the mean over folds is meaningful.
"""

from pathlib import Path

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.splits import Fold, make_kfold
from sgpmil.errors import BagError

CLASSIC_SETS = {
    "musk1": "92 molecules in their shapes; positive bags hold a musk.",
    "musk2": "102 molecules in their shapes, many to some; positive bags hold a musk.",
    "fox": "200 pictures in segments; positive bags show a fox.",
    "tiger": "200 pictures in segments; positive bags show a tiger.",
    "elephant": "200 pictures in segments; positive bags show an elephant.",
}
"""Description of each data set by name."""
NUM_FOLDS = 10
FOLDS_SEED = 0


def classic_bags(path: Path) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Read a set and make its ten stratified folds, always the same.

    Args:
        path: `.npz` with `features` (all instances), `offsets` (where each bag begins, and the
            end) and `labels`.

    Raises:
        BagError: The file is missing or damaged, or has no labels.
        SplitError: There are too few bags of a class.
    """
    if not path.is_file():
        raise BagError(f"Expected packed bags in {path}, but there is no such file.")
    bags = read_bags(path)
    if not bags.target.names:
        raise BagError(f"Expected the array 'labels' in {path}, but there is none. Add it.")
    return bags, make_kfold(bags.label_table(), num_folds=NUM_FOLDS, seed=FOLDS_SEED)
