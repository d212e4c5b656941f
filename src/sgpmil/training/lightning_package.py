"""Lightning, imported where it is needed and not before: it is slow, and brings torchvision."""

from sgpmil.torchvision_import import mend_torchvision

mend_torchvision()  # Lightning imports it in passing.

import lightning  # noqa: E402
from lightning.pytorch.loggers import Logger  # noqa: E402
from lightning.pytorch.plugins.io import TorchCheckpointIO  # noqa: E402
from lightning.pytorch.utilities.exceptions import SIGTERMException  # noqa: E402

__all__ = ["Logger", "SIGTERMException", "TorchCheckpointIO", "lightning"]
