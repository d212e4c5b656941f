"""slideflow's pair of files: `{slide}.pt` and, for the tile locations, `{slide}.index.npz`."""

from dataclasses import replace
from pathlib import Path

from sgpmil.bags.readers import clam
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.bags.readers.raw import BagHeader, RawBag, as_coords
from sgpmil.errors import BagError

__all__ = ["index_path", "peek", "read"]


def read(path: Path) -> RawBag:
    """Read a tensor and its index of tile locations."""
    raw = clam.read_pt(path)
    index = index_path(path)
    arrays = load_npz(index)
    if "arr_0" not in arrays:
        raise BagError(
            f"Expected an array 'arr_0' of tile locations, but got {sorted(arrays)} ({index}). "
            "Extract the slide again, or remove the index."
        )
    return replace(raw, coords=as_coords(arrays["arr_0"], raw.features.shape[0], index))


def peek(path: Path) -> BagHeader:
    """Read the shape of a tensor with an index."""
    return replace(clam.peek_pt(path), has_coords=True)


def index_path(path: Path) -> Path:
    """Return where the index of tile locations of a bag lies.

    Example:
        >>> index_path(Path("TCGA-1.A.pt")).name
        'TCGA-1.A.index.npz'
    """
    return path.with_name(f"{path.stem}.index.npz")
