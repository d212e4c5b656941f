"""Slides that are drawn in memory, with H&E-like colours and a known truth."""

from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from sgpmil.slides.reading import Level, Resolution, Slide

HAEMATOXYLIN = np.array([0.65, 0.70, 0.29])
EOSIN = np.array([0.07, 0.99, 0.11])
MPP = 2.0
RESOLUTION = Resolution(mpp=MPP, magnification=5.0, source="given")


class DrawnSlide(Slide):
    """An image in memory as a slide, with levels each half the size of the one before."""

    def __init__(self, image, *, levels=1, mpp=None, objective=None, slide_id="drawn slide"):
        self.images = [np.ascontiguousarray(image, dtype=np.uint8)]
        for _ in range(levels - 1):
            height, width = self.images[-1].shape[:2]
            size = (max(1, width // 2), max(1, height // 2))
            self.images.append(cv2.resize(self.images[-1], size, interpolation=cv2.INTER_AREA))
        width = self.images[0].shape[1]
        levels_ = tuple(Level(i.shape[1], i.shape[0], width / i.shape[1]) for i in self.images)
        super().__init__(Path(f"{slide_id}.drawn"), levels_, mpp, objective)

    def _read(self, x, y, width, height, level):
        scale = self.levels[level].downsample
        x, y = round(x / scale), round(y / scale)
        image = self.images[level]
        out = np.full((height, width, 3), 255, dtype=np.uint8)
        part = image[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
        top, left = max(0, -y), max(0, -x)
        out[top : top + part.shape[0], left : left + part.shape[1]] = part
        return out

    def close(self):
        pass


def blob(shape, centre, radii, rng, roughness=0.12):
    """Draw an irregular ellipse; returns a boolean mask."""
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    dx, dy = (x - centre[0]) / radii[0], (y - centre[1]) / radii[1]
    angle, distance = np.arctan2(dy, dx), np.hypot(dx, dy)
    edge = np.ones_like(angle)
    for wave in range(2, 9):
        edge += roughness / wave * rng.normal() * np.cos(wave * angle + rng.uniform(0, 6.28))
    return distance < edge


def noise(shape, scale, rng):
    """Smooth noise of mean 0 and standard deviation 1."""
    small = rng.normal(size=(shape[0] // scale + 3, shape[1] // scale + 3)).astype(np.float32)
    field_ = cv2.resize(small, (shape[1], shape[0]), interpolation=cv2.INTER_CUBIC)
    return (field_ - field_.mean()) / field_.std()


@dataclass
class Drawing:
    """A slide of glass on which tissue is drawn; `mask` is the truth, for each level-0 pixel."""

    shape: tuple = (1000, 1400)
    glass: tuple = (243, 243, 244)
    seed: int = 0
    rng: np.random.Generator = field(init=False)
    image: np.ndarray = field(init=False)
    mask: np.ndarray = field(init=False)
    unscanned: np.ndarray = field(init=False)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.image = np.empty((*self.shape, 3), dtype=np.float32)
        self.image[:] = self.glass
        self.mask = np.zeros(self.shape, dtype=bool)
        self.unscanned = np.zeros(self.shape, dtype=bool)

    def tissue(self, where, strength=1.0, eosin=0.35, haematoxylin=0.25):
        """Stain an area: strength 1 is ordinary, 0.25 very pale."""
        pink = eosin * np.exp(0.35 * noise(self.shape, 12, self.rng))
        nuclei = haematoxylin * np.exp(0.8 * noise(self.shape, 4, self.rng))
        density = strength * (pink[..., None] * EOSIN + nuclei[..., None] * HAEMATOXYLIN)
        self.image = np.where(where[..., None], self.image * np.exp(-density), self.image)
        self.mask |= where
        return self

    def fat(self, where, cell=80.0):
        """Draw fat: walls of 2 µm between cells of about this diameter in microns."""
        height, width = self.shape
        count = round(height * width * MPP**2 / cell**2)
        plane = cv2.Subdiv2D((0, 0, width, height))
        for x, y in self.rng.uniform(0, 1, (count, 2)) * (width, height):
            plane.insert((float(x), float(y)))
        walls = np.zeros(self.shape, dtype=np.uint8)
        for corners in plane.getVoronoiFacetList([])[0]:
            cv2.polylines(walls, [corners.astype(np.int32)], True, 1, 1)
        self.tissue(walls.astype(bool) & where, 0.8)
        self.mask |= where
        return self

    def pieces(self, strength=1.0):
        """Two ordinary pieces of tissue."""
        height, width = self.shape
        first = blob(self.shape, (width * 0.3, height * 0.5), (width * 0.2, height * 0.3), self.rng)
        second = blob(
            self.shape, (width * 0.75, height * 0.5), (width * 0.14, height * 0.35), self.rng
        )
        return self.tissue(first | second, strength)

    def lose(self, where):
        """Say that an area is not tissue after all."""
        self.mask &= ~where
        return self

    def paint(self, where, colour, opacity=1.0):
        """Cover an area with a colour; what is under it is no longer tissue."""
        self.image = np.where(
            where[..., None], (1 - opacity) * self.image + opacity * np.array(colour), self.image
        ).astype(np.float32)
        return self.lose(where)

    def fill(self, where, colour):
        """Leave an area unscanned: the scanner's software fills it with exactly this colour."""
        self.unscanned |= where
        return self.paint(where, colour)

    def stroke(self, points, colour, thickness=100, opacity=1.0):
        """Draw with a pen that lets some light through, as ink does: by multiplication."""
        line = np.zeros(self.shape, dtype=np.uint8)
        cv2.polylines(line, [np.array(points, dtype=np.int32)], False, 1, thickness)
        where = line.astype(bool)
        inked = self.image * (np.array(colour) / 255)
        self.image = np.where(
            where[..., None], (1 - opacity) * self.image + opacity * inked, self.image
        ).astype(np.float32)
        return self.lose(where)

    def finished(self, sensor_noise=2.0, jpeg=80, levels=1):
        """Give the slide as a scanner would, with its noise and its compression."""
        noisy = self.image + self.rng.normal(0, sensor_noise, self.image.shape)
        noisy[self.unscanned] = self.image[self.unscanned]
        image = noisy.round().clip(0, 255).astype(np.uint8)
        if jpeg:
            _, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, jpeg])
            image = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
        return DrawnSlide(image, levels=levels)


def dice(area, mask):
    """Compare an area (level-0 pixels) with a mask of level 0."""
    found = np.zeros(mask.shape, dtype=np.uint8)
    for part in getattr(area, "geoms", [area]):
        if part.is_empty:
            continue
        rings = [part.exterior, *part.interiors]
        cv2.fillPoly(found, [np.array(r.coords).round().astype(np.int32) for r in rings], 1)
    total = found.sum() + mask.sum()
    return 1.0 if total == 0 else 2 * float((found.astype(bool) & mask).sum()) / float(total)
