"""What identifies an encoder: the hash of its weights and of what is done with them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

__all__ = ["file_hash", "fingerprint"]


def fingerprint(weights: Mapping[str, torch.Tensor], recipe: str) -> str:
    """Hash weights, in the order of their names, and a recipe.

    The same in every process and on every device, and for every file format that the same weights
    came from.

    Args:
        weights: Tensors by name.
        recipe: What else makes the embeddings, in words.
    """
    digest = hashlib.sha256(recipe.encode())
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # Bytes have no bfloat16 in NumPy: they are hashed as plain bytes.
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Hash the content of a file.

    Args:
        path: File to read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
