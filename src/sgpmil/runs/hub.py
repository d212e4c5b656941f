"""Exported models on the Hugging Face hub: fetched by name, and pushed.

`huggingface_hub` finds the user's token and keeps what it fetches; this module asks it and turns
its errors into sentences.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgpmil.errors import CheckpointError, MissingPartError, SettingsError, SgpmilError
from sgpmil.installation import install_command
from sgpmil.runs.exported_folder import CONFIG, SLIDES, WEIGHTS

_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def is_hub_id(text: str) -> bool:
    """Return whether a text may name a model of the hub: ``user/name``, and no local path.

    Example:
        >>> is_hub_id("user/name"), is_hub_id("runs/a/fold-0"), is_hub_id("../name")
        (True, False, False)
    """
    if not _ID.fullmatch(text) or text.endswith((".safetensors", ".json")):
        return False
    # A mistyped name in a folder that exists is no reason to ask the hub.
    return not Path(text).parent.exists()


def fetch(hub_id: str, revision: str | None = None) -> Path:
    """Fetch an exported model, or find it in the cache, and return its folder.

    Args:
        hub_id: Its name, ``user/name``.
        revision: A commit, branch or tag; by default the newest.

    Raises:
        MissingPartError: huggingface_hub is not installed.
        CheckpointError: It cannot be fetched.
    """
    hub = _import_hub(f"fetch '{hub_id}', which is no file or folder here")
    with _explained(
        CheckpointError,
        f"Expected a model at '{hub_id}', but there is no such folder"
        " here and it could not be fetched from the hub",
    ):
        # A graph for other runtimes is not needed here.
        found = hub.snapshot_download(
            hub_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS, SLIDES]
        )
    return Path(found)


def push(folder: Path, hub_id: str, *, private: bool = False) -> str:
    """Push an exported model to the hub, and return its address.

    Args:
        folder: The exported model.
        hub_id: Its name there, ``user/name``; made where it does not exist.
        private: Whether only the user sees it.

    Raises:
        MissingPartError: huggingface_hub is not installed.
        SettingsError: The name is none, is public there though `private` is asked for, or cannot
            be written.
    """
    hub = _import_hub("push to the hub")
    with _explained(SettingsError, f"Expected to push to '{hub_id}' on the hub, but could not"):
        api = hub.HfApi()
        address = api.create_repo(hub_id, private=private, exist_ok=True)
        if private and not api.repo_info(hub_id).private:
            raise SettingsError(
                f"Expected a private model '{hub_id}' for `private`, but it is public on the hub "
                "already: nothing was pushed. Make it private there, or choose another name."
            )
        api.upload_folder(
            repo_id=hub_id, folder_path=folder, commit_message="Export a model of sgpmil"
        )
    return str(address)


def check_hub(hub_id: str | None, *, private: bool) -> None:
    """Refuse options of a push that cannot work, before anything is written.

    Raises:
        SettingsError: The name is none, or `private` is given without it.
        MissingPartError: huggingface_hub is not installed.
    """
    if hub_id is None:
        if private:
            raise SettingsError("`private` is about `push_to_hub`. Add `push_to_hub=USER/NAME`.")
        return
    if not _ID.fullmatch(hub_id):
        raise SettingsError(f"Expected `push_to_hub` as USER/NAME, but got '{hub_id}'.")
    _import_hub("push to the hub")


def _import_hub(purpose: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPartError(
            f"Expected the package 'huggingface_hub' to {purpose}, but it is not installed. "
            f"Install it with: {install_command('export')}."
        ) from error
    return huggingface_hub


@contextmanager
def _explained(kind: type[SgpmilError], text: str) -> Iterator[None]:
    """Turn any failure of the network, the hub or the token into one sentence."""
    try:
        yield
    except SgpmilError:
        raise
    except Exception as error:
        # Its messages have many lines: addresses, identifiers of requests and hints.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:1]) or "no reason given"
        raise kind(
            f"{text} ({type(error).__name__}: {reason.rstrip('.')}). Check the name, the network "
            "and the token (hf auth login)."
        ) from error
