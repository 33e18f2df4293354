"""The model and its losses over again: one process, float64, one request, one candidate, one pair at a time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile, Window

Params = dict[str, torch.Tensor]


def read_rows(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.read_table(file.uri, partitioning=None).to_pylist()]


@dataclass
class SlowModel:
    """Leaf tensors, and what the data says."""

    config: RunConfig
    window: Window
    tables: Params
    dense: Params = field(default_factory=dict)
    log_q_weight: float = 1.0
    """Of the correction by log q; anything but 1 is another loss, for negative controls."""
    staleness: int = 1
    owed: list[Params] = field(default_factory=list)
    """Updates that the tables lack, the oldest first."""

    def __post_init__(self) -> None:
        self.items = {row["item_id"]: row for row in read_rows(self.window.items)}
        counts = [1] * self.config.data.item_table.num_rows
        for row in read_rows(self.window.training):
            for item in row["candidates"]:
                counts[item] += 1
        self.log_q = [self.log_q_weight * math.log(count / sum(counts)) for count in counts]
        for tensors in (self.tables, self.dense):
            for name, tensor in tensors.items():
                tensors[name] = tensor.double().requires_grad_()

    def loss(self, requests: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        model, heads = self.config.model, self.config.data.heads
        bce, num_rows, pairs = torch.zeros((), dtype=torch.float64), 0, []
        for request in requests:
            summary, logits = self.scores(request)
            for place, item in enumerate(request["candidates"]):
                num_rows += 1
                for index, head in enumerate(heads):
                    p = torch.sigmoid(logits[place][index])
                    right = p if request[head.column][place] else 1 - p
                    bce = bce - head.weight / sum(head.weight for head in heads) * torch.log(right)
                if any(head.engagement and request[head.column][place] for head in heads):
                    pairs.append((request["user_id"], item, summary))
        loss = bce / num_rows
        if not model.contrastive.weight or not pairs:
            return loss
        users = [self.user_vector(user, summary) for user, _, summary in pairs]
        items = [self.item_vector(item) for _, item, _ in pairs]
        pull = torch.zeros((), dtype=torch.float64)
        for i, (user, _, _) in enumerate(pairs):
            others = [j for j in range(len(pairs)) if j == i or pairs[j][0] != user]
            scores = torch.stack(
                [users[i] @ items[j] / model.contrastive.temperature - self.log_q[pairs[j][1]] for j in others]
            )
            pull = pull + torch.logsumexp(scores, 0) - scores[others.index(i)]
        return loss + model.contrastive.weight * pull / len(pairs)

    def step(self, requests: Sequence[Mapping[str, Any]], dense_lr: float, table_lr: float) -> float:
        """One step of SGD; the loss before it. The tables lack the last `staleness` updates."""
        loss = self.loss(requests)
        loss.backward()
        with torch.no_grad():
            for tensor in self.dense.values():
                if tensor.grad is not None:
                    tensor -= dense_lr * tensor.grad
                    tensor.grad = None
        self.owed.append({name: table_lr * tensor.grad for name, tensor in self.tables.items()})
        for tensor in self.tables.values():
            tensor.grad = None
        self.settle(self.staleness)
        return loss.item()

    def settle(self, num_owed: int = 0) -> None:
        """Make the updates that the tables still lack, but for the last ones."""
        with torch.no_grad():
            while len(self.owed) > num_owed:
                for name, update in self.owed.pop(0).items():
                    self.tables[name] -= update

    def scores(self, request: Mapping[str, Any]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The summary of user and history, and each candidate's logits."""
        dim, dense = self.config.model.dim, self.dense
        user = self.tables["user"][request["user_id"]] * math.sqrt(dim)
        sequence = [user / 2 + dense["position"][0]]
        length = self.config.model.history_length if self.config.data.columns.history else 0
        for place, item in enumerate(request["history"][:length]):
            x = self.tables["item"][item] * math.sqrt(dim) / 2 + dense["position"][place + 1]
            if "action.weight" in dense:
                x = x + dense["action.weight"][request["action"][place]]
            if "age.weight" in dense:
                x = x + dense["age.weight"][int(math.log2(request["age_s"][place] + 1))]
            sequence.append(x)
        x_SD = torch.stack(sequence)
        for layer in range(self.config.model.num_layers):
            x_SD = self.transformer(x_SD, f"layers.{layer}.")
        logits = []
        for item_id in request["candidates"]:
            item, content = self.tables["item"][item_id] * math.sqrt(dim), self.content(item_id)
            query = self.linear("query", item if content is None else torch.cat([item, content]))
            attended = torch.softmax(x_SD @ query / math.sqrt(dim), 0) @ x_SD
            features = [user, item, user * item, attended, attended * item]
            features += [(user @ item)[None] / math.sqrt(dim), (attended @ item)[None] / math.sqrt(dim)]
            if content is not None:
                features += [content, x_SD[0] * content, user * content, (user @ content)[None] / math.sqrt(dim)]
            for feature in self.config.data.context:
                if feature.kind == "categorical":
                    features.append(dense[f"context.categories.{feature.name}.weight"][request[feature.column]])
            for feature in self.config.data.context:
                if feature.kind == "numeric":
                    numbers = torch.tensor(request[feature.column], dtype=torch.float64).reshape(-1)
                    features.append(torch.sign(numbers) * torch.log(1 + abs(numbers)))
            hidden = torch.cat(features)
            for index in range(len(self.config.model.hidden_sizes)):
                hidden = torch.relu(self.linear(f"heads.{2 * index}", hidden))
            logits.append(self.linear(f"heads.{2 * len(self.config.model.hidden_sizes)}", hidden))
        return x_SD[0], logits

    def user_vector(self, user_id: int, summary: torch.Tensor) -> torch.Tensor:
        user = self.tables["user"][user_id] * math.sqrt(self.config.model.dim)
        return F.normalize(self.linear("user_tower", torch.cat([user, summary])) + user, dim=0)

    def item_vector(self, item_id: int) -> torch.Tensor:
        item, content = self.tables["item"][item_id] * math.sqrt(self.config.model.dim), self.content(item_id)
        known = item if content is None else torch.cat([item, content])
        return F.normalize(self.linear("item_tower", known) + item, dim=0)

    def content(self, item_id: int) -> torch.Tensor | None:
        """None where the data has no content; zeros where this item has none."""
        items, dense = self.config.data.items, self.dense
        if items is None:
            return None
        if item_id not in self.items:
            return torch.zeros(self.config.model.dim, dtype=torch.float64)
        row, parts, num_patches = self.items[item_id], [], 0
        if items.patches is not None:
            num_patches = items.patches.num
            patches = torch.tensor(row["patches"], dtype=torch.float64).reshape(num_patches, items.patches.width)
            for place, patch in enumerate(patches):
                parts.append(self.linear("content.patch", patch) + dense["content.position"][place])
        if items.tokens is not None:
            for place, token in enumerate(row["tokens"]):
                parts.append(dense["content.token.weight"][token] + dense["content.position"][num_patches + place])
        if not parts:
            return self.linear("content.out", self.padding_alone())
        x_SD = torch.stack(parts)
        for layer in range(self.config.model.num_content_layers):
            x_SD = self.transformer(x_SD, f"content.layers.{layer}.")
        return self.linear("content.out", x_SD.mean(0))

    def padding_alone(self) -> torch.Tensor:
        """What an item with a row but without a position is encoded as: the mean over its padding."""
        x_SD = self.dense["content.token.weight"][0] + self.dense["content.position"]
        for layer in range(self.config.model.num_content_layers):
            x_SD = self.transformer(x_SD, f"content.layers.{layer}.")
        return x_SD.mean(0)

    def transformer(self, x_SD: torch.Tensor, name: str) -> torch.Tensor:
        dim, num_heads = x_SD.shape[1], self.config.model.num_heads
        query, key, value = self.linear(f"{name}query_key_value", self.norm(f"{name}attention_norm", x_SD)).split(
            dim, 1
        )
        heads = []
        for head in range(num_heads):
            own = slice(head * dim // num_heads, (head + 1) * dim // num_heads)
            likeness = query[:, own] @ key[:, own].T / math.sqrt(dim // num_heads)
            heads.append(torch.softmax(likeness, 1) @ value[:, own])
        x_SD = x_SD + self.linear(f"{name}attention_out", torch.cat(heads, 1))
        hidden = self.linear(f"{name}network.0", self.norm(f"{name}network_norm", x_SD))
        return x_SD + self.linear(f"{name}network.2", hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.dense[f"{name}.weight"].T + self.dense[f"{name}.bias"]

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
        return scaled * self.dense[f"{name}.weight"] + self.dense[f"{name}.bias"]
