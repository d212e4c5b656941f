"""Where an extraction keeps its files: TRIDENT's layout.

::

    contours_geojson/<slide>.geojson
    contours/<slide>.png                                    previews
    thumbnails/<slide>.jpg
    20x_256px_0px_overlap/patches/<slide>_patches.h5
    20x_256px_0px_overlap/features_<encoder>/<slide>.h5

Patches by microns per pixel are no patches by magnification, and have folders of their own:
`0.5mpp_256px_0px_overlap`.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sgpmil.slides.patches.settings import PatchSettings

__all__ = ["ExtractionFolder"]


@dataclass(frozen=True, slots=True)
class ExtractionFolder:
    """The folder of an extraction, with the names of the files in it.

    Args:
        root: The folder.
        patches_folder: The folder in it for patches of one size, resolution and overlap.

    Example:
        >>> folder = ExtractionFolder.of("job", PatchSettings(magnification=2.5))
        >>> folder.features("uni_v1", "TCGA-01.svs").relative_to(folder.root).as_posix()
        '2.5x_256px_0px_overlap/features_uni_v1/TCGA-01.svs.h5'
    """

    root: Path
    patches_folder: Path

    @classmethod
    def of(cls, root: str | os.PathLike[str], settings: PatchSettings) -> "ExtractionFolder":
        """Name the folder for patches of these settings.

        Args:
            root: The folder of the extraction.
            settings: Size, resolution and overlap of the patches.
        """
        if settings.magnification is not None:
            scale = f"{settings.magnification:.10g}x"
        else:
            scale = f"{settings.mpp:.10g}mpp"
        name = f"{scale}_{settings.size}px_{settings.overlap}px_overlap"
        return cls(Path(root), Path(root) / name)

    @property
    def contours_folder(self) -> Path:
        """Where the contours are."""
        return self.root / "contours_geojson"

    @property
    def previews_folder(self) -> Path:
        """Where the previews are."""
        return self.root / "contours"

    @property
    def coords_folder(self) -> Path:
        """Where the coordinates are."""
        return self.patches_folder / "patches"

    def features_folder(self, encoder: str) -> Path:
        """Name where the embeddings of an encoder are.

        Args:
            encoder: Its name; what no folder's name may have becomes a dash.
        """
        return self.patches_folder / f"features_{re.sub(r'[^A-Za-z0-9._+-]+', '-', encoder)}"

    def contours(self, slide_id: str) -> Path:
        """Name the contours of a slide."""
        return self.contours_folder / f"{slide_id}.geojson"

    def preview(self, slide_id: str) -> Path:
        """Name the preview of a slide."""
        return self.previews_folder / f"{slide_id}.png"

    def thumbnail(self, slide_id: str) -> Path:
        """Name the thumbnail of a slide."""
        return self.root / "thumbnails" / f"{slide_id}.jpg"

    def coords(self, slide_id: str) -> Path:
        """Name the coordinates of a slide."""
        return self.coords_folder / f"{slide_id}_patches.h5"

    def features(self, encoder: str, slide_id: str) -> Path:
        """Name the embeddings of a slide."""
        return self.features_folder(encoder) / f"{slide_id}.h5"
