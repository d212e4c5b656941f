"""Jobs of a study: their result files.

The result of a job is one JSON file, which is complete or absent. ``study.json`` lists all jobs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sgpmil.bags.files import read_json, write_text
from sgpmil.errors import RunFolderError, SettingsError


@dataclass(frozen=True)
class JobFile:
    """The file of a job's result: ``<data set>/<variant>/<fold>-seed<k>.json``.

    Args:
        data_set: Name of the data set.
        variant: Name of the variant.
        fold: Name of the fold.
        seed: Seed.
        settings: Everything that decides the result; kept in the file, so that a result of other
            settings is not taken for this job's.
    """

    data_set: str
    variant: str
    fold: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Name of the job within its study."""
        return f"{self.data_set}/{self.variant}/{self.fold}-seed{self.seed}"

    def check(self) -> None:
        """Refuse names that cannot be those of folders.

        Raises:
            SettingsError: One of them cannot.
        """
        for name in (self.data_set, self.variant, self.fold):
            if name in ("", ".", "..") or Path(name).name != name:
                raise SettingsError(f"Expected a name that can be a folder's, but got '{name}'.")

    def path(self, out: Path) -> Path:
        """Return the file's place in a folder of results."""
        return out / f"{self.key}.json"

    def read(self, out: Path) -> dict[str, Any] | None:
        """Read the result, where there is one."""
        return read_result(self.path(out))

    def write(self, out: Path, result: Mapping[str, Any]) -> None:
        """Write the result with the job's names and settings.

        Raises:
            OSError: The file cannot be written; then nothing is left behind.
        """
        content = {
            "data_set": self.data_set,
            "variant": self.variant,
            "fold": self.fold,
            "seed": self.seed,
            "settings": _plain(self.settings),
            **result,
        }
        # A line an entry: the settings can be read, and lists of bags do not fill the screen.
        lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in content.items()]
        write_text(self.path(out), "{\n" + ",\n".join(lines) + "\n}\n")

    def difference(self, result: Mapping[str, Any]) -> str | None:
        """Describe the first difference of a result's settings from this job's, or return None."""
        old, new = _flat(result["settings"]), _flat(_plain(self.settings))
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                if key == "data":
                    return f"the bags or the fold of {self.key} have changed"
                return f"{key} of {self.key} was {old.get(key)!r} and is now {new.get(key)!r}"
        return None


@dataclass(frozen=True)
class StudyPlan:
    """All jobs that were ever planned for a folder (``study.json``); with all, a table is complete.

    Args:
        jobs: Keys of the jobs.
        conditions: Settings that all of them share.
    """

    FILE: ClassVar[str] = "study.json"

    jobs: tuple[str, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(out: Path) -> "StudyPlan":
        """Read the plan of a folder; without a file, the plan is empty."""
        try:
            content = read_json(out / StudyPlan.FILE)
            return StudyPlan(tuple(content["jobs"]), dict(content["conditions"]))
        except (OSError, ValueError, KeyError, TypeError):
            return StudyPlan()

    def joined(
        self, files: Sequence[JobFile], conditions: Mapping[str, Any], out: Path
    ) -> "StudyPlan":
        """Return the plan with more jobs.

        Raises:
            RunFolderError: The jobs before were of other conditions.
        """
        for name in sorted(conditions) if self.jobs else ():
            old, new = self.conditions.get(name), conditions[name]
            if old != new:
                raise RunFolderError(
                    f"Expected {name} {_shown(old)} as in the results in {out}, but got "
                    f"{_shown(new)}. Choose another folder with `out`."
                )
        return StudyPlan(tuple(dict.fromkeys((*self.jobs, *(f.key for f in files)))), conditions)

    def write(self, out: Path) -> None:
        """Write the plan.

        Raises:
            OSError: It cannot be written.
        """
        content = {"conditions": dict(self.conditions), "jobs": list(self.jobs)}
        write_text(out / self.FILE, json.dumps(content, indent=1))


def unfinished(files: Sequence[JobFile], out: Path, overwrite: bool) -> list[JobFile]:
    """Return the jobs that are still to run: without a result, or with an error.

    Args:
        files: Files of the jobs.
        out: Folder of the results.
        overwrite: Whether jobs with a result of other settings are to run again.

    Raises:
        RunFolderError: A result is of other settings, and that was not asked for.
    """
    todo, differing = [], []
    for file in files:
        result = file.read(out)
        if result is None or not is_done(result):
            todo.append(file)
        elif (difference := file.difference(result)) is not None:
            todo.append(file)
            differing.append(difference)
    if differing and not overwrite:
        more = f" ({len(differing) - 1} more jobs differ)" if len(differing) > 1 else ""
        raise RunFolderError(
            f"Expected results of the present settings in {out}, but {differing[0]}{more}. "
            "Run these jobs again with `overwrite=True`, or choose another folder with `out`."
        )
    return todo


def read_result(path: Path) -> dict[str, Any] | None:
    """Read a job's file; None where it is missing or damaged, so that the job runs again."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    whole = isinstance(content, dict) and {"status", "settings"} <= content.keys()
    return content if whole and isinstance(content["settings"], dict) else None


def is_done(result: Mapping[str, Any]) -> bool:
    """Return whether a job ended well."""
    return result["status"] == "done"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= (
            {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        )
    return flat


def _shown(value: Any) -> str:
    return "of each model's own" if value is None else str(value)
