"""The encoders that are known by name.

Transforms and precisions are those under which TRIDENT stores features of the same name, so that
features of either tool serve the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.encoder import PatchTransform, Precision

__all__ = ["DEFAULT_ENCODER", "EncoderEntry", "encoder_rows", "find_entry", "list_encoders"]

DEFAULT_ENCODER = "efficientnet-lite0"

Pooling = Literal["token", "token+mean", "attention", "mean", "mean of layer 3"]
Layout = Literal["timm", "transformers", "conch", "efficientnet-lite"]


@dataclass(frozen=True, slots=True)
class EncoderEntry:
    """What is known of an encoder.

    Args:
        name: Its name, which is TRIDENT's where that tool has it.
        dim: Length of an embedding.
        transform: What is done to patches first.
        architecture: The architecture, as timm calls it.
        arguments: What makes the architecture this encoder's. Layers are given by name.
        pooling: What is taken of the network's output: the class token; that and the mean of the
            patches' tokens, one after the other; attention with one query; or the mean over the
            image of the last, or the third, stage.
        precision: What it computes in on a GPU.
        layout: Whose names the tensors of its checkpoint have.
        repository: Where its weights are on Hugging Face's hub; empty where a package has them.
        aliases: Other names.
        licence: Licence of the weights.
        is_gated: Whether the licence must be accepted before the weights can be downloaded.
    """

    name: str
    dim: int
    transform: PatchTransform
    architecture: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pooling: Pooling = "token"
    precision: Precision = "float32"
    layout: Layout = "timm"
    repository: str = ""
    aliases: tuple[str, ...] = ()
    licence: str = ""
    is_gated: bool = False

    @property
    def recipe(self) -> str:
        """What makes the embeddings beside weights, transform and precision."""
        arguments = sorted(self.arguments.items())
        return f"{self.architecture} {arguments} {self.pooling} {self.dim}"


_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_BILINEAR = PatchTransform(224)
_BICUBIC = PatchTransform(224, interpolation="bicubic")
_HALVES = PatchTransform(224, mean=_HALF, std=_HALF)
_LITE = PatchTransform(224, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
_H_OPTIMUS = PatchTransform(
    224, mean=(0.707223, 0.578729, 0.703617), std=(0.211883, 0.230117, 0.177517)
)
_SWIGLU = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU"}
_VIRCHOW = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", **_SWIGLU}
_CC_NC = "CC BY-NC-ND 4.0"


def _kaiko(short: str, dim: int, architecture: str, repository: str, **more: Any) -> EncoderEntry:
    return EncoderEntry(
        name=f"kaiko-{short}",
        dim=dim,
        transform=_HALVES,
        architecture=architecture,
        arguments={"dynamic_img_size": True, **more},
        repository=f"1aurent/{repository}.kaiko_ai_towards_large_pathology_fms",
        licence="kaiko.ai, non-commercial",
    )


_ENTRIES = (
    EncoderEntry(
        name=DEFAULT_ENCODER,
        dim=1280,
        transform=_LITE,
        architecture="efficientnet-lite0",
        pooling="mean",
        layout="efficientnet-lite",
        aliases=("efficientnet",),
        licence="Apache 2.0",
    ),
    EncoderEntry(
        name="resnet50",
        dim=1024,
        transform=_BILINEAR,
        architecture="resnet50",
        pooling="mean of layer 3",
        repository="timm/resnet50.tv_in1k",
        aliases=("resnet50_trunc",),
        licence="BSD 3-clause",
    ),
    EncoderEntry(
        name="uni_v1",
        dim=1024,
        transform=_BILINEAR,
        architecture="vit_large_patch16_224",
        arguments={"init_values": 1e-5, "dynamic_img_size": True},
        precision="float16",
        repository="MahmoodLab/UNI",
        aliases=("uni", "uni1"),
        licence=_CC_NC,
        is_gated=True,
    ),
    EncoderEntry(
        name="uni_v2",
        dim=1536,
        transform=_BILINEAR,
        architecture="vit_giant_patch14_224",
        arguments={
            "depth": 24,
            "num_heads": 24,
            "embed_dim": 1536,
            "mlp_ratio": 2.66667 * 2,
            "init_values": 1e-5,
            "no_embed_class": True,
            "reg_tokens": 8,
            "dynamic_img_size": True,
            **_SWIGLU,
        },
        precision="bfloat16",
        repository="MahmoodLab/UNI2-h",
        aliases=("uni2", "uni2_h"),
        licence=_CC_NC,
        is_gated=True,
    ),
    EncoderEntry(
        name="conch_v1",
        dim=512,
        transform=PatchTransform(448, mean=_CLIP_MEAN, std=_CLIP_STD, interpolation="bicubic"),
        architecture="vit_base_patch16_224",
        arguments={"img_size": 448, "dynamic_img_size": True},
        pooling="attention",
        layout="conch",
        repository="MahmoodLab/CONCH",
        aliases=("conch",),
        licence=_CC_NC,
        is_gated=True,
    ),
    EncoderEntry(
        name="virchow",
        dim=2560,
        transform=_BICUBIC,
        architecture="vit_huge_patch14_224",
        arguments={**_VIRCHOW, "dynamic_img_size": True},
        pooling="token+mean",
        precision="float16",
        repository="paige-ai/Virchow",
        aliases=("virchow1",),
        licence="Apache 2.0",
        is_gated=True,
    ),
    EncoderEntry(
        name="virchow2",
        dim=2560,
        transform=_BICUBIC,
        architecture="vit_huge_patch14_224",
        arguments={**_VIRCHOW, "reg_tokens": 4, "dynamic_img_size": True},
        pooling="token+mean",
        precision="float16",
        repository="paige-ai/Virchow2",
        licence=_CC_NC,
        is_gated=True,
    ),
    EncoderEntry(
        name="gigapath",
        dim=1536,
        transform=PatchTransform(224, resize=256, interpolation="bicubic"),
        architecture="vit_giant_patch14_dinov2",
        arguments={"img_size": 224, "patch_size": 16, "dynamic_img_size": True},
        precision="float16",
        repository="prov-gigapath/prov-gigapath",
        aliases=("prov_gigapath",),
        licence="Apache 2.0 with conditions",
        is_gated=True,
    ),
    EncoderEntry(
        name="hoptimus0",
        dim=1536,
        transform=_H_OPTIMUS,
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments={"img_size": 224},
        precision="float16",
        repository="bioptimus/H-optimus-0",
        aliases=("hoptimus",),
        licence="Apache 2.0",
    ),
    EncoderEntry(
        name="hoptimus1",
        dim=1536,
        transform=_H_OPTIMUS,
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments={"img_size": 224},
        precision="float16",
        repository="bioptimus/H-optimus-1",
        licence=_CC_NC,
        is_gated=True,
    ),
    EncoderEntry(
        name="phikon",
        dim=768,
        transform=_BILINEAR,
        architecture="vit_base_patch16_224",
        arguments={"norm_eps": 1e-12},
        layout="transformers",
        repository="owkin/phikon",
        aliases=("phikon_v1",),
        licence="Owkin, non-commercial",
    ),
    EncoderEntry(
        name="phikon_v2",
        dim=1024,
        transform=_BILINEAR,
        architecture="vit_large_patch16_224",
        arguments={"init_values": 1.0},
        layout="transformers",
        repository="owkin/phikon-v2",
        aliases=("phikon2",),
        licence="Owkin, non-commercial",
    ),
    EncoderEntry(
        name="midnight12k",
        dim=3072,
        transform=_HALVES,
        architecture="vit_giant_patch14_dinov2",
        arguments={"img_size": 224},
        pooling="token+mean",
        precision="float16",
        layout="transformers",
        repository="kaiko-ai/midnight",
        aliases=("midnight",),
        licence="MIT",
    ),
    _kaiko("vits8", 384, "vit_small_patch8_224", "vit_small_patch8_224"),
    _kaiko("vits16", 384, "vit_small_patch16_224", "vit_small_patch16_224"),
    _kaiko("vitb8", 768, "vit_base_patch8_224", "vit_base_patch8_224"),
    _kaiko("vitb16", 768, "vit_base_patch16_224", "vit_base_patch16_224"),
    _kaiko(
        "vitl14",
        1024,
        "vit_large_patch14_reg4_dinov2",
        "vit_large_patch14_reg4_224",
        img_size=518,
    ),
)


def list_encoders() -> tuple[EncoderEntry, ...]:
    """Return the encoders that are known by name, the default first."""
    return _ENTRIES


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def find_entry(name: str) -> EncoderEntry:
    """Return the encoder of a name or alias; case, dashes and underscores do not matter.

    Args:
        name: Name, e.g. ``uni_v2``, ``UNI2-h``.

    Raises:
        EncoderError: There is none of that name.
    """
    by_name = {_plain(n): entry for entry in _ENTRIES for n in (entry.name, *entry.aliases)}
    found = by_name.get(_plain(name))
    if found is None:
        close = [by_name[n].name for n in get_close_matches(_plain(name), by_name, n=3)]
        hint = f"Did you mean {' or '.join(dict.fromkeys(close))}? " if close else ""
        raise EncoderError(
            f"Expected the name of an encoder, but got '{name}'. {hint}Known are "
            f"{', '.join(entry.name for entry in _ENTRIES)}; any other model goes by "
            "timm:NAME, hf:OWNER/NAME, FILE.pt (TorchScript), FILE.onnx or package.module:Class."
        )
    return found


def encoder_rows() -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the heading and the rows of a table of the encoders."""
    heading = ("name", "length", "input", "precision", "weights", "licence")
    rows = tuple(
        (
            entry.name,
            str(entry.dim),
            f"{entry.transform.size} px",
            entry.precision,
            entry.repository or "embedded",
            entry.licence + (", to be accepted" if entry.is_gated else ""),
        )
        for entry in _ENTRIES
    )
    return heading, rows
