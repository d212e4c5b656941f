"""Small encoders of the same code path as the large ones, with random weights."""

from dataclasses import replace

import torch

from sgpmil.slides.encoders.published import build_trunk
from sgpmil.slides.encoders.registry import EncoderEntry, find_entry


def small_entry(name: str, **arguments) -> EncoderEntry:
    """The entry of a name with fewer and narrower blocks."""
    entry = find_entry(name)
    sizes = {"depth": 2, "embed_dim": 48, "num_heads": 4, **arguments}
    times = 2 if entry.pooling == "token+mean" else 1
    dim = entry.dim if entry.pooling == "attention" else times * sizes["embed_dim"]
    return replace(entry, arguments={**entry.arguments, **sizes}, dim=dim)


def random_weights(entry: EncoderEntry, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that fit an entry, in the names of its network."""
    source = torch.Generator().manual_seed(seed)
    weights = {}
    for name, value in build_trunk(entry).state_dict().items():
        if value.dtype.is_floating_point:
            scale = 0.1 if value.ndim > 1 else 0.5
            weights[name] = scale * torch.randn(value.shape, generator=source)
            if name.endswith("running_var"):
                weights[name] = 1 + weights[name].abs()
        else:
            weights[name] = torch.zeros(value.shape, dtype=value.dtype)
    return weights


def random_patches(num: int, side: int = 256, seed: int = 0) -> torch.Tensor:
    """Smooth patches of random colours."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.rand((num, 3, 9, 9), generator=source)
    fine = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    noise = 0.1 * torch.rand(fine.shape, generator=source)
    return (255 * (0.9 * fine + noise)).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
