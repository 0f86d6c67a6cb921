"""The detection loss in plain Python floats and loops, from the formulas of the papers alone."""

from __future__ import annotations

import math

EPS = 1e-7
GAINS = {"box": 7.5, "dfl": 1.5, "class": 0.5}
TOP_K = {"one2many": 10, "one2one": 1}


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inner = max(width, 0.0) * max(height, 0.0)
    return inner / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner + EPS)


def complete_iou(a, b):
    overlap = iou(a, b)
    c = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    d = ((a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2) / 4
    angle = math.atan((a[2] - a[0]) / (a[3] - a[1] + EPS)) - math.atan((b[2] - b[0]) / (b[3] - b[1] + EPS))
    v = 4 / math.pi**2 * angle**2
    return overlap - d / (c + EPS) - v / (1 - overlap + v + EPS) * v


def cells(maps, strides):
    """(level, row, column, x, y, stride) of every cell, finest level first."""
    return [
        (level, row, column, (column + 0.5) * stride, (row + 0.5) * stride, stride)
        for level, (grid, stride) in enumerate(zip(maps, strides, strict=True))
        for row in range(grid.shape[2])
        for column in range(grid.shape[3])
    ]


def softmax(values):
    highest = max(values)
    powers = [math.exp(value - highest) for value in values]
    return [power / sum(powers) for power in powers]


def assign(boxes, scores, places, objects, top_k, smallest_side):
    """{cell: (object, target)} of one sample; `objects` are (box, label)."""
    metric, overlap = {}, {}
    chosen = {}
    for o, (box, label) in enumerate(objects):
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        half = max(box[2] - box[0], smallest_side) / 2, max(box[3] - box[1], smallest_side) / 2
        for cell, (_, _, _, x, y, _) in enumerate(places):
            if abs(x - middle[0]) < half[0] and abs(y - middle[1]) < half[1]:
                overlap[o, cell] = max(complete_iou(boxes[cell], box), 0.0)
                metric[o, cell] = scores[cell][label] ** 0.5 * overlap[o, cell] ** 6
        best = sorted((cell for p, cell in metric if p == o), key=lambda cell: -metric[o, cell])[:top_k]
        for cell in best:
            if metric[o, cell] > 0:
                chosen.setdefault(cell, []).append(o)
    owner = {cell: max(some, key=lambda o: overlap[o, cell]) for cell, some in chosen.items()}
    found = {}
    for cell, o in owner.items():
        own = [other for other in owner if owner[other] == o]
        target = metric[o, cell] / max(metric[o, c] for c in own) * max(overlap[o, c] for c in own)
        found[cell] = (o, target)
    return found


def branch_loss(maps, strides, samples, top_k):
    """Sums of one branch over a batch, without gains; `samples` are lists of (box, label)."""
    places = cells(maps, strides)
    total, sums = 0.0, {"box": 0.0, "dfl": 0.0, "class": 0.0}
    for b, objects in enumerate(samples):
        columns = [maps[level][b, :, row, column].tolist() for level, row, column, *_ in places]
        boxes, scores = [], []
        for values, (_, _, _, x, y, stride) in zip(columns, places, strict=True):
            sides = [sum(k * p for k, p in enumerate(softmax(values[16 * s : 16 * s + 16]))) for s in range(4)]
            left, top, right, bottom = (side * stride for side in sides)
            boxes.append((x - left, y - top, x + right, y + bottom))
            scores.append([1 / (1 + math.exp(-value)) for value in values[64:]])
        found = assign(boxes, scores, places, objects, top_k, strides[1])
        for cell, (values, (_, _, _, x, y, stride)) in enumerate(zip(columns, places, strict=True)):
            o, weight = found.get(cell, (None, 0.0))
            total += weight
            for k, score in enumerate(scores[cell]):
                wanted = weight if o is not None and objects[o][1] == k else 0.0
                sums["class"] -= wanted * math.log(score) + (1 - wanted) * math.log(1 - score)
            if o is None:
                continue
            box = objects[o][0]
            sums["box"] += weight * (1 - complete_iou(boxes[cell], box))
            for side, distance in enumerate((x - box[0], y - box[1], box[2] - x, box[3] - y)):
                distance = min(max(distance / stride, 0.0), 14.99)
                probabilities = softmax(values[16 * side : 16 * side + 16])
                low, share = int(distance), distance - int(distance)
                sums["dfl"] -= weight / 4 * (1 - share) * math.log(probabilities[low])
                sums["dfl"] -= weight / 4 * share * math.log(probabilities[low + 1])
    return {name: value / max(total, 1.0) for name, value in sums.items()}


def detection_loss(maps, strides, samples):
    """All parts with their gains, as `DetectionLoss` names them."""
    parts = {}
    for branch, top_k in TOP_K.items():
        for name, value in branch_loss(maps[branch], strides, samples, top_k).items():
            parts[f"{branch}_{name}"] = GAINS[name] * value
    return {"loss": sum(parts.values()), **parts}
