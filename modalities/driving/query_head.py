"""Objects from a map of the bird's-eye view: the strongest cells of a heat map become queries of one decoder layer.

The heat map is that of CenterPoint (arXiv 2006.11275, section 4), its use for queries that of TransFusion
(arXiv 2203.11496, section 3.2). Both attentions are the shared block on true coordinates, in cells of the map.

Legend: B scenes, C features, X x Y cells, K classes, Q queries, W cells of the neighbourhood of a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.driving.bev_neck import ConvNorm, cell_centres, map_size
from modalities.driving.boxes import Boxes3D
from modalities.driving.config import BOX_OUTPUTS, FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.encoder import make_block
from modalities.driving.mapping import constants
from zoo.coordinates import Coordinates
from zoo.transformer import Block

__all__ = ["FusionOutputs", "QueryHead", "decode"]

# Probability of an object in a cell before training.
PRIOR = 0.01
# Cells that are not the strongest among their neighbours come after the others: their scores count this much.
_SLOPE = 0.1
# Logarithms of sizes are kept in this range, so that no box overflows.
_LARGEST_LOG = 5.0


@dataclass(frozen=True)
class FusionOutputs:
    """What the head gives before boxes are made of it; all floats in float32 or wider.

    Attributes:
        heatmap: (B, K, X, Y) logits.
        cells: (B, Q) int64 cell of every query, x * Y + y.
        labels: (B, Q) int64 class for which the cell was chosen.
        classes: (B, Q, K) logits.
        boxes: (B, Q, 10): x, y, z of the centre in metres, logarithms of length, width and height, sine and cosine of
            the yaw, velocity along x and y in m/s.
    """

    heatmap: Tensor
    cells: Tensor
    labels: Tensor
    classes: Tensor
    boxes: Tensor


class QueryHead(nn.Module):
    """Heat map, queries, a decoder layer, and a small network for every output.

    Args:
        config: Sizes.
        data: Range and grid.
    """

    def __init__(self, config: FusionConfig, data: DrivingDataConfig) -> None:
        super().__init__()
        self.config, self.data = config, data
        dim = config.dim
        self.among_queries, self.around = make_block(config), make_block(config)
        for place, layer in enumerate((self.among_queries, self.around)):
            layer.attn.encoding.place(place, 2)
            layer.attn.encoding.reset_parameters()
        self.heat = nn.Sequential(ConvNorm(dim, dim), nn.ReLU())
        self.boxes = nn.ModuleDict({name: _two_layers(dim, width) for name, width in BOX_OUTPUTS.items()})
        self.scores = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        for tower in self.boxes.values():
            last = cast(nn.Linear, cast(nn.Sequential, tower)[-1])
            nn.init.normal_(last.weight, std=0.01)
            nn.init.zeros_(last.bias)
        self.reset_classifier(config.num_classes)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives every layer that knows the classes new weights: small, with the prior of an object as bias."""
        like = cast(nn.Linear, self.scores[0]).weight
        dim = like.shape[1]
        self.num_classes = num_classes
        self.heat_classes = nn.Conv2d(dim, num_classes, 3, padding=1, device=like.device, dtype=like.dtype)
        self.score_classes = nn.Linear(dim, num_classes, device=like.device, dtype=like.dtype)
        self.class_embed = nn.Embedding(num_classes, dim, device=like.device, dtype=like.dtype)
        for layer in (self.heat_classes, self.score_classes):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.constant_(cast(Tensor, layer.bias), -math.log((1 - PRIOR) / PRIOR))
        nn.init.normal_(self.class_embed.weight, std=0.02)

    def forward(self, bev: Tensor) -> FusionOutputs:
        """Outputs of a map (B, C, X, Y)."""
        heat = self.heat_classes
        # In 16 bit the prior would take the digits of all else: it is added after.
        heatmap = _wide(F.conv2d(self.heat(bev), heat.weight, padding=1)) + _wide(cast(Tensor, heat.bias)).view(
            -1, 1, 1
        )
        cells, labels = self._chosen(heatmap)
        flat = bev.flatten(2).transpose(1, 2)
        x = self._decoded(flat, cells, labels)
        made = {name: _wide(tower(x)) for name, tower in self.boxes.items()}
        centres = cell_centres(self.config, self.data, heatmap).flatten(0, 1)
        size = self.config.bev_stride * self.data.pillar_size
        # From the middle of the cell, in cells.
        centre = centres[cells] + size * made["centre"]
        log_size = made["size"].clamp(-_LARGEST_LOG, _LARGEST_LOG)
        boxes = torch.cat([centre, made["height"], log_size, made["yaw"], made["velocity"]], dim=-1)
        score = self.score_classes
        classes = _wide(F.linear(self.scores(x), score.weight)) + _wide(score.bias)
        return FusionOutputs(heatmap, cells, labels, classes, boxes)

    @torch.no_grad()
    def _chosen(self, heatmap: Tensor) -> tuple[Tensor, Tensor]:
        """The strongest cells and their classes, (B, Q) each."""
        heat = heatmap.sigmoid()
        peak = heat == F.max_pool2d(heat, 3, 1, 1)
        ranked = torch.where(peak, heat, _SLOPE * heat).flatten(1)
        best = ranked.topk(min(self.config.num_queries, ranked.shape[1]), dim=1).indices
        cells = heatmap.shape[2] * heatmap.shape[3]
        return best % cells, best // cells

    def _decoded(self, flat: Tensor, cells: Tensor, labels: Tensor) -> Tensor:
        """Features of the queries (B, Q, C) after the decoder layer; `flat` is the map (B, X * Y, C)."""
        along_x, along_y = map_size(self.config, self.data)
        scenes, queries = cells.shape
        first = torch.arange(scenes, device=cells.device).unsqueeze(1) * (along_x * along_y)
        table = flat.flatten(0, 1)
        # The gradient of an embedding is summed in a fixed order, that of an index is not.
        x = F.embedding(cells + first, table) + self.class_embed(labels).to(flat.dtype)

        wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
        at = torch.stack([cells // along_y, cells % along_y], dim=-1)
        span = ((0.0, float(along_x - 1)), (0.0, float(along_y - 1)))
        x = self.among_queries(x, Coordinates(at.to(wide), bounds=span, unit="cell"))

        reach = self.config.query_window // 2
        steps = torch.arange(-reach, reach + 1, device=cells.device)
        around = torch.cartesian_prod(steps, steps).view(-1, 2)
        near = at.unsqueeze(2) + around
        on_map = ((near >= 0) & (near < constants([along_x, along_y], near))).all(-1)
        number = first.unsqueeze(2) + near[..., 0] * along_y + near[..., 1]
        neighbours = F.embedding(torch.where(on_map, number, first.unsqueeze(2)), table)
        tokens = torch.cat([x.unsqueeze(2), neighbours], dim=2).flatten(0, 1)
        mask = F.pad(on_map, (1, 0), value=True).flatten(0, 1)
        places = F.pad(around, (0, 0, 1, 0)).to(wide).unsqueeze(0)  # The query is in the middle.
        span = ((float(-reach), float(reach)),) * 2
        coords = Coordinates(places, integral=True, bounds=span, unit="cell")
        return _first_row(self.around, tokens, coords, mask).view(scenes, queries, -1)


def decode(outputs: FusionOutputs, max_boxes: int, min_score: float) -> list[Boxes3D]:
    """Boxes of every scene, best first; there is no suppression of neighbours, since training matches one query each.

    The score is the geometric mean of the probability in the heat map and that of the query's class.

    Args:
        outputs: Of the head.
        max_boxes: Most boxes of a scene.
        min_score: Boxes with a smaller score are left out.
    """
    with torch.no_grad():
        labels = outputs.labels
        places = (labels * outputs.heatmap.shape[2] * outputs.heatmap.shape[3]) + outputs.cells
        heat = outputs.heatmap.flatten(1).gather(1, places)
        own = outputs.classes.gather(2, labels.unsqueeze(2)).squeeze(2)
        scores = ((F.logsigmoid(heat) + F.logsigmoid(own)) / 2).exp()
        scores, best = scores.topk(min(max_boxes, scores.shape[1]), dim=1)
        labels = labels.gather(1, best)
        rows = outputs.boxes.gather(1, best.unsqueeze(2).expand(-1, -1, outputs.boxes.shape[2]))
        counts = (scores >= min_score).sum(1).tolist()  # They are sorted.
        found = []
        for row, label, score, count in zip(rows, labels, scores, counts, strict=True):
            row = row[:count]
            yaw = torch.atan2(row[:, 6], row[:, 7])
            found.append(Boxes3D(row[:, :3], row[:, 3:6].exp(), yaw, row[:, 8:10], label[:count], score[:count]))
        return found


def _first_row(block: Block, tokens: Tensor, coords: Coordinates, mask: Tensor) -> Tensor:
    """What the block gives for the first token of every set, (G, C): only its MLP is computed for that alone."""
    attended = cast(Tensor, block.attn(block.norm1(tokens), coords, mask))[:, 0]
    x = tokens[:, 0] + block.drop_path1(attended)
    return x + block.drop_path2(block.mlp(block.norm2(x)))


def _two_layers(dim: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
