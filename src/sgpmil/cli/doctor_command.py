"""`sgpmil doctor`: what is installed, and what to install."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sgpmil.cli.output import console, facts

__all__ = ["doctor"]

_CORE = (
    "sgpmil",
    "torch",
    "gpytorch",
    "lightning-fabric",
    "numpy",
    "scikit-learn",
    "h5py",
    "pyarrow",
)
_PARTS = {
    "slides (read slide files)": ("openslide", 'pip install "sgpmil[slides]"'),
    "encoders (embed patches)": ("timm", 'pip install "sgpmil[encoders]"'),
    "viewer (web page)": ("fastapi", 'pip install "sgpmil[viewer]"'),
    "ray (several machines)": ("ray", 'pip install "sgpmil[ray]"'),
    "TensorBoard": ("tensorboard", 'pip install "sgpmil[tracking]"'),
    "MLflow": ("mlflow", "pip install mlflow"),
    "Weights & Biases": ("wandb", "pip install wandb"),
}


def doctor() -> None:
    """Show versions, the GPU, and optional parts with how to install them."""
    import torch

    facts(
        "Versions",
        [("python", platform.python_version()), *((name, _version(name)) for name in _CORE)],
    )
    if torch.cuda.is_available():
        gpu = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        console.print(f"GPU: {gpu} (CUDA {torch.version.cuda}).")
    else:
        console.print(
            "GPU: none that PyTorch can use; everything runs on the CPU "
            f"({torch.get_num_threads()} threads)."
        )
    facts(
        "Optional parts",
        [
            (name, "installed" if find_spec(module) else f"not installed: {how}")
            for name, (module, how) in _PARTS.items()
        ],
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
