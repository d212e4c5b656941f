"""The installation of the package: its optional parts, and what the machine lacks.

The command ``sgpmil doctor`` shows what `inspect_installation` finds.
"""

import json
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from sgpmil.torchvision_import import torchvision_fits

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
_LEAST_DISK = 2e9
"""Free bytes below which a small run may not fit."""
_LEAST_GPU_MEMORY = 2e9


@dataclass(frozen=True, slots=True)
class OptionalPart:
    """An optional part of the package.

    Args:
        name: Its name in the installation command.
        purpose: What it is for.
        modules: Modules of other packages that it needs.
        own: The module of this package that uses them.
        file: File in its folder that is fetched when the package is set up or built.
        file_name: Name of what is in the file.
        fetch: Command that fetches it.
    """

    name: str
    purpose: str
    modules: tuple[str, ...]
    own: str
    file: str = ""
    file_name: str = ""
    fetch: str = ""

    @property
    def exists(self) -> bool:
        """Whether this version of the package has it."""
        return _is_installed(self.own)

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules that are not installed."""
        return tuple(name for name in self.modules if not _is_installed(name))

    @property
    def lacks_file(self) -> bool:
        """Whether the modules are installed, but its file is not there."""
        if not self.file or self.missing:
            return False
        places = getattr(find_spec(self.own), "submodule_search_locations", None) or ()
        return not any((Path(place) / self.file).is_file() for place in places)


PARTS = (
    OptionalPart(
        "slides",
        "read slide files",
        ("openslide", "tifffile", "imagecodecs", "cv2", "shapely", "PIL"),
        "sgpmil.slides",
    ),
    OptionalPart(
        "encoders",
        "embed patches",
        ("timm", "torchvision", "huggingface_hub", "efficientnet_lite_pytorch"),
        "sgpmil.slides.encoders",
    ),
    OptionalPart(
        "export",
        "share models",
        ("huggingface_hub", "onnx", "onnxscript"),
        "sgpmil.runs.hub",
    ),
    OptionalPart(
        "viewer",
        "show slides in a browser",
        ("fastapi", "uvicorn"),
        "sgpmil.viewer",
        file="static/vendor/openseadragon.min.js",
        file_name="OpenSeadragon",
        fetch="python -m sgpmil.viewer.vendor",
    ),
    OptionalPart("ray", "use several machines", ("ray",), "sgpmil.scaleout"),
    OptionalPart("tracking", "TensorBoard", ("tensorboard",), "sgpmil.training"),
    OptionalPart("mlflow", "MLflow", ("mlflow",), "sgpmil.training"),
    OptionalPart("wandb", "Weights & Biases", ("wandb",), "sgpmil.training"),
)


def install_command(part: str) -> str:
    """Return the command that adds an optional part to this installation.

    A package that came from a folder or an address is installed from there again: it may not be in
    a package index.
    """
    try:
        text = distribution("sgpmil").read_text("direct_url.json")
    except PackageNotFoundError:
        return f"pip install '.[{part}]' (in the folder of the package)"
    if text is None:
        return f"pip install 'sgpmil[{part}]'"
    source = json.loads(text)
    if "dir_info" not in source:
        kind = source.get("vcs_info", {}).get("vcs")
        address = source["url"] if kind is None else f"{kind}+{source['url']}"
        return f"pip install 'sgpmil[{part}] @ {address}'"
    folder = url2pathname(urlparse(source["url"]).path)
    editable = "-e " if source["dir_info"].get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{part}]')}"


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed and what the machine has.

    Args:
        versions: Version of Python and of each package.
        machine: Cores, GPU, free memory and disk, in words.
        parts: Optional parts that this version has.
        problems: What is wrong and what to do, the worst first; empty where all is right.
    """

    versions: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...]
    parts: tuple[OptionalPart, ...]
    problems: tuple[str, ...]


def inspect_installation(folder: Path | str = ".") -> Installation:
    """Find out what is installed, what the machine has, and what is wrong.

    Args:
        folder: Folder where runs will be written.
    """
    place = Path(folder).resolve()
    versions = [("python", platform.python_version())]
    versions += [(name, _version(name) or "not installed") for name in _CORE]
    if not torchvision_fits():
        unfit = "built for another torch: encoders work, its operators for detection do not"
        versions += [("torchvision", f"{_version('torchvision')}, {unfit}")]
    elif _version("torchvision"):
        versions += [("torchvision", f"{_version('torchvision')}, fits torch")]
    machine = [
        ("CPU", f"{_num_threads()} threads of torch"),
        ("GPU", "; ".join(_gpus()) or "none that torch can use: all runs on the CPU"),
        ("disk", f"{_size(_free_disk(place))} free at {place}"),
    ]
    parts = tuple(part for part in PARTS if part.exists)
    return Installation(tuple(versions), tuple(machine), parts, tuple(_problems(place)))


def _problems(place: Path) -> Iterator[str]:
    for name in _missing_packages():
        yield f"The package '{name}' is not installed, but needed. Run: pip install {name}"
    if not os.access(place, os.W_OK):
        yield f"Nothing can be written to {place}. Change to a folder of yours."
    for where in {place, Path(tempfile.gettempdir())}:
        if _free_disk(where) < _LEAST_DISK:
            free = _size(_free_disk(where))
            yield f"Only {free} are free at {where}. Free some, or use another disk."
    yield from _gpu_problems()
    for part in PARTS:
        if part.exists and part.lacks_file:
            yield (
                f"The {part.name} lacks {part.file_name}, which npm (Node.js) fetches. Run: "
                f"{part.fetch}"
            )


def _gpu_problems() -> Iterator[str]:
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            yield (
                f"This machine has an NVIDIA driver, but torch {torch.__version__} cannot use a "
                "GPU. Install torch for CUDA as https://pytorch.org tells, or update the driver."
            )
        return
    for number in range(torch.cuda.device_count()):
        free, _ = torch.cuda.mem_get_info(number)
        if free < _LEAST_GPU_MEMORY:
            yield (
                f"Only {_size(free)} of GPU {number} are free. End what else uses it, or choose "
                "another device (`device`)."
            )


def _gpus() -> Iterator[str]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            yield f"{name}, {_size(free)} of {_size(total)} free (CUDA {torch.version.cuda})"


def _missing_packages() -> list[str]:
    """Return the required packages that are not installed."""
    try:
        needed = requires("sgpmil") or []
    except PackageNotFoundError:
        return []
    names = [re.split(r"[^\w.-]", text)[0] for text in needed if "extra ==" not in text]
    return [name for name in names if _version(name) is None]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is missing
        return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()


def _free_disk(place: Path) -> int:
    return shutil.disk_usage(place).free


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
