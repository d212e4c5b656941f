"""Small tables of labels in the form of the published ones."""

import csv

COLUMNS = {
    "camelyon16": ("", "image", "label", "case_id", "slide_id"),
    "tcga-nsclc": ("slide_id", "case_id", "label"),
    "panda": ("slide_id", "case_id", "label", "isup_grade"),
    "bracs": ("slide_id", "case_id", "Set", "numerical_label", "label"),
}


def camelyon16_rows(num_train=12, num_test=6):
    names = [(f"normal_{i:03d}", "normal") for i in range(num_train // 2)]
    names += [(f"tumor_{i:03d}", "tumor") for i in range(num_train // 2)]
    names += [(f"test_{i:03d}", "tumor" if i % 2 else "normal") for i in range(num_test)]
    return [
        (i, f"{name}.tif", label, f"patient_{i}", name) for i, (name, label) in enumerate(names)
    ]


def bracs_rows(num=24):
    parts = ("Training", "Training", "Training", "Training", "Validation", "Testing")
    rows = []
    for i in range(num):
        label = ("AT", "BT", "MT")[i % 3]
        rows.append((f"BRACS_{i}", f"p{i}", parts[(i // 3) % 6], i % 3, label))
    return rows


def panda_rows(num=48):
    grades = ("NC", "G1", "G2", "G3", "G4", "G5")
    return [(f"{i:032x}", f"p{i}", grades[i % 6], i % 6) for i in range(num)]


def tcga_rows(num=24):
    return [
        (f"TCGA-{i}-01Z-00-DX1.{i}A", f"TCGA-{i // 2}", ("LUSC", "LUAD")[(i // 2) % 2])
        for i in range(num)
    ]


ROWS_OF = {
    "camelyon16": camelyon16_rows,
    "tcga-nsclc": tcga_rows,
    "panda": panda_rows,
    "bracs": bracs_rows,
}


def write_labels(path, cohort, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS[cohort])
        writer.writerows(ROWS_OF[cohort](**how))
    return path
