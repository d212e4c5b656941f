"""Annotation files as other programs write them, for the tests."""

import json

import numpy as np


def rectangle(left, top, right, bottom):
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def circle(x, y, radius, corners=400):
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


def write_asap(path, drawn, root="ASAP_Annotations"):
    """Write (group, points[, type]) as ASAP does."""
    parts = [f'<?xml version="1.0"?>\n<{root}>\n\t<Annotations>\n']
    for number, (group, points, *kind) in enumerate(drawn):
        type_ = kind[0] if kind else "Polygon"
        parts.append(
            f'\t\t<Annotation Name="Annotation {number}" Type="{type_}" PartOfGroup="{group}" '
            'Color="#F4FA58">\n\t\t\t<Coordinates>\n'
        )
        parts += [
            f'\t\t\t\t<Coordinate Order="{order}" X="{float(x)!r}" Y="{float(y)!r}" />\n'
            for order, (x, y) in enumerate(points)
        ]
        parts.append("\t\t\t</Coordinates>\n\t\t</Annotation>\n")
    parts.append(f"\t</Annotations>\n\t<AnnotationGroups/>\n</{root}>\n")
    path.write_text("".join(parts))
    return path


def feature(rings, name="Tumor", kind="Polygon"):
    closed = [[list(map(float, p)) for p in [*ring, ring[0]]] for ring in rings]
    coordinates = closed if kind == "Polygon" else [[ring] for ring in closed]
    return {
        "type": "Feature",
        "id": "0",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": name, "color": [200, 0, 0]},
        },
    }


def write_geojson(path, features, as_collection=True):
    content = {"type": "FeatureCollection", "features": features} if as_collection else features
    path.write_text(json.dumps(content))
    return path


def write_tiff(path, pixels, levels=1, subifds=False, **options):
    import tifffile

    with tifffile.TiffWriter(path) as writer:
        for level in range(levels):
            writer.write(
                np.ascontiguousarray(pixels[:: 2**level, :: 2**level]),
                subfiletype=int(level > 0),
                subifds=levels - 1 if subifds and level == 0 else None,
                metadata=None,
                **({"tile": (64, 64), "compression": "deflate"} | options),
            )
    return path
