"""Patches become embeddings: encoders by name, from local weights, or of one's own.

====================  ==========================================================================
file                  holds
====================  ==========================================================================
encoder               what an encoder is, and the one that a network makes
transform             what is done to a patch before an encoder sees it
fingerprint           what identifies an encoder
registry              the encoders that are known by name
registered            those, with their weights
architectures         their networks, without weights
conch                 the network of CONCH
transformers_names    checkpoints of the package transformers for timm's networks
positions             learned positions on another grid
checkpoints           weights from a file, and into a network
hub                   weights from Hugging Face's hub
timm_models           any model of timm
transformers_models   any image model of transformers
model_files           TorchScript and ONNX files
sidecar               what a file beside a model says of its input
own_class             a Python class of the user's
network               a network that was loaded, before it is put on a device
packages              the packages that encoders need
loading               the encoder of a name
====================  ==========================================================================
"""

from sgpmil.slides.encoders.encoder import Encoder, NetworkEncoder, Precision
from sgpmil.slides.encoders.loading import load_encoder
from sgpmil.slides.encoders.own_class import PatchNetwork
from sgpmil.slides.encoders.registry import (
    DEFAULT_ENCODER,
    EncoderEntry,
    encoder_rows,
    find_entry,
    list_encoders,
)
from sgpmil.slides.encoders.transform import PatchTransform

__all__ = [
    "DEFAULT_ENCODER",
    "Encoder",
    "EncoderEntry",
    "NetworkEncoder",
    "PatchNetwork",
    "PatchTransform",
    "Precision",
    "encoder_rows",
    "find_entry",
    "list_encoders",
    "load_encoder",
]
