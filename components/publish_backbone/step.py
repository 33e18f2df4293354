"""The step `publish-backbone`: pretrained tables, put where other runs fetch them."""

from typing import Protocol

from thaw.components import storage
from thaw.components.config import from_parameter
from thaw.components.publish_backbone.publish import publish
from thaw.components.refused import RefusedError
from thaw.components.runs import stage

STAGE = "publish-backbone"


class Artifact(Protocol):
    """What the step needs of KFP's artifact: the folder of a stage's attempt."""

    uri: str


def run(config: str, run_uri: str, backbone: Artifact) -> None:
    """Publish the backbone as `<backbone.publish_prefix_uri>/<run id>`.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        backbone: The attempt of prepare-backbone.

    Raises:
        NotCommittedError: the backbone is not committed.
        RefusedError: the configuration names no place to publish.
        CheckpointError, FileExistsError: see `publish`.
    """
    settings = from_parameter(config)
    with stage(settings, run_uri, STAGE, {"backbone": backbone.uri}) as current:
        if current.committed:
            return
        prefix_uri = settings.backbone.publish_prefix_uri
        if prefix_uri is None:
            raise RefusedError("backbone.publish_prefix_uri is not set: name the folder that runs fetch backbones from")
        uri = storage.join(prefix_uri, current.attempt.run_id)
        published = publish(current.input_uri("backbone", "model"), uri)
        current.commit(
            figures={"trained_through": str(published.trained_through)},
            outputs={"model": uri},
            window=current.manifests["backbone"].window,
        )
