"""Patch encoders: by name, from files, or a class of the user.

==================  ==========================================================================
file                holds
==================  ==========================================================================
encoder             encoders: a transform, a network and the fingerprint of both
registry            encoders by name, of this package and of plug-ins
published           the published encoders: architectures, transforms and weights
checkpoints         weights from files and from Hugging Face's hub, into a network
checkpoint_layouts  checkpoints of transformers and of CONCH, renamed for timm's networks
libraries           any image model of timm or transformers
own_models          TorchScript files, ONNX files and classes of the user
loading             `load_encoder`, which chooses among these by the name
==================  ==========================================================================
"""

from sgpmil.slides.encoders.encoder import Encoder, NetworkEncoder, PatchTransform, Precision
from sgpmil.slides.encoders.loading import load_encoder
from sgpmil.slides.encoders.own_models import PatchNetwork
from sgpmil.slides.encoders.published import PublishedEncoder
from sgpmil.slides.encoders.registry import (
    DEFAULT_ENCODER,
    EncoderEntry,
    encoder_rows,
    find_entry,
    list_encoders,
    register_encoder,
)

__all__ = [
    "DEFAULT_ENCODER",
    "Encoder",
    "EncoderEntry",
    "NetworkEncoder",
    "PatchNetwork",
    "PatchTransform",
    "Precision",
    "PublishedEncoder",
    "encoder_rows",
    "find_entry",
    "list_encoders",
    "load_encoder",
    "register_encoder",
]
