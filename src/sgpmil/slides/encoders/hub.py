"""Weights from Hugging Face's hub."""

from pathlib import Path

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoints import WEIGHT_FILES
from sgpmil.slides.encoders.packages import require

__all__ = ["download_weights", "hub_failure"]


def hub_failure(repository: str, error: Exception | None) -> EncoderError:
    """Say why the weights of a repository cannot be had, and what to do.

    Args:
        repository: ``owner/name``.
        error: What went wrong.
    """
    words = " ".join(str(error).split())[:160]
    return EncoderError(
        f"Expected the weights of '{repository}' from Hugging Face's hub or its cache, but they "
        f"cannot be had ({type(error).__name__}: {words}). Accept the licence at "
        f"https://huggingface.co/{repository} and log in with 'hf auth login'; or, without "
        "internet, download the weights elsewhere and give the file with --weights."
    )


def download_weights(repository: str) -> Path:
    """Return the weight file of a repository, from the cache or else downloaded.

    What is in the cache is used as it is, without asking the hub: a second run does not depend on
    the network, nor on what was uploaded since. With ``HF_HUB_OFFLINE=1`` the hub is never asked.

    Args:
        repository: ``owner/name``.

    Raises:
        EncoderError: It cannot be had: no network, not cached, or its licence is not accepted.
    """
    require("huggingface_hub")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    failure: Exception | None = None
    for from_cache in (True, False):
        for name in WEIGHT_FILES:
            try:
                return Path(hf_hub_download(repository, name, local_files_only=from_cache))
            except (EntryNotFoundError, OSError, ValueError) as error:
                failure = error
                is_elsewhere = isinstance(error, EntryNotFoundError)
                is_unreachable = isinstance(error, LocalEntryNotFoundError) and not from_cache
                if is_unreachable or not is_elsewhere:
                    break
    raise hub_failure(repository, failure) from failure
