"""When a job saves, and what."""

from collections.abc import Mapping
from typing import Any

import torch

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.prepare_backbone.backbone import Backbone
from thaw.components.select_window.window import Window
from thaw.components.trainer import checkpoint
from thaw.components.trainer.ledger import RowLedger
from thaw.components.trainer.startup import Ranks


class Saver:
    """Saves a job's state in mid-epoch every so many steps, and its model in the end. Collective.

    With each checkpoint goes the row ledger, so that the two agree on which rows were trained.
    """

    def __init__(
        self,
        spec: JobSpec,
        config: RunConfig,
        ranks: Ranks,
        tensors: Mapping[str, torch.Tensor],
        plan: Mapping[str, Any],
        ledger: RowLedger | None = None,
    ) -> None:
        self._spec, self._config, self._ranks, self._tensors, self._ledger = spec, config, ranks, tensors, ledger
        self._plan = plan

    def is_due(self, global_step: int, num_steps: int) -> bool:
        """Whether a checkpoint follows this step; after the last one none does, as the model is saved.

        Args:
            global_step: steps that the job has made.
            num_steps: steps of the job.
        """
        every = self._config.training.checkpoint_every_steps
        return every is not None and global_step % every == 0 and global_step < num_steps

    def checkpoint(
        self, global_step: int, epoch: int, step: int, counts: Mapping[str, int], curve: list[tuple[int, float]]
    ) -> None:
        """Save in mid-epoch, once every update has been made.

        Args:
            global_step: steps that the job has made.
            epoch: of the next step.
            step: the next step, within that epoch.
            counts: what all ranks have trained so far, by name.
            curve: of the loss so far.
        """
        folder = storage.join(self._spec.output_uri, "checkpoints")
        progress = {"epoch": epoch, "step": step, "counts": counts, "loss_curve": curve, "plan": self._plan}
        self._save(checkpoint.step_uri(folder, global_step), self._tensors, progress)

    def model(self, epoch: int, step: int) -> None:
        """Save the whole model."""
        self._save(self._model_uri, self._tensors, {"epoch": epoch, "step": step})

    def backbone(self, backbone: Backbone) -> None:
        """Save the rows of the tables as a backbone."""
        self._save(self._model_uri, rows_alone(self._tensors), {}, backbone)

    @property
    def _model_uri(self) -> str:
        return storage.join(self._spec.output_uri, "model")

    def _save(
        self,
        uri: str,
        tensors: Mapping[str, torch.Tensor],
        progress: Mapping[str, Any],
        backbone: Backbone | None = None,
    ) -> None:
        if self._ledger is not None:
            self._ledger.write()
        checkpoint.save(
            uri, tensors, document=self._config, progress=progress, group=self._ranks.world, backbone=backbone
        )


def plan_of(spec: JobSpec, config: RunConfig, window: Window) -> dict[str, Any]:
    """What a step's number stands for: which rows, in which order, trained how. The number of ranks is not in it."""
    training = {"global_batch_size", "num_lanes", "shuffle", "shuffle_rows", "staleness"}
    return {
        "window": window.fingerprint,
        "policy": spec.policy,
        "training": config.training.model_dump(mode="json", include=training),
        "recipe": config.recipe.model_dump(mode="json", exclude={"policies"}),
        "pretrain": config.backbone.pretrain.model_dump(mode="json") if config.backbone.pretrain else None,
    }


def rows_alone(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The rows of the tables, without slots and dense tensors."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith("table/") and name.count("/") == 1}
