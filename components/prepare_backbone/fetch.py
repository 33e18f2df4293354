"""Finds the published backbone that a run starts from."""

import datetime
import logging

from thaw.components import storage
from thaw.components.checkpoint_folder import COMPLETE, check_content, is_complete
from thaw.components.config import RunConfig
from thaw.components.prepare_backbone.backbone import (
    BACKBONE,
    Backbone,
    BackboneError,
    date_faults,
    read_backbone,
    refuse_unfit,
)

_log = logging.getLogger(__name__)


def fetch_backbone(config: RunConfig, date: datetime.date, window_first_day: datetime.date) -> tuple[str, Backbone]:
    """The backbone that `config.backbone.fetch` names, checked to its last byte: its folder and its manifest.

    Args:
        config: The run's configuration, which fetches.
        date: D, the first day that training never reads.
        window_first_day: First day of the window.

    Raises:
        CheckpointError: the folder is torn, or a file is missing or isn't what was published.
        BackboneError: none there, or it must not be used (`refuse_unfit`).
    """
    fetch = config.backbone.fetch
    assert fetch is not None
    if fetch.uri is not None:
        uri = fetch.uri
    else:
        assert fetch.prefix_uri is not None
        uri = newest_backbone(fetch.prefix_uri, config, date, window_first_day)
    backbone = read_backbone(uri)
    refuse_unfit(backbone, config, date, window_first_day, uri=uri)
    check_content(uri)
    return uri, backbone


def newest_backbone(prefix_uri: str, config: RunConfig, date: datetime.date, window_first_day: datetime.date) -> str:
    """The folder under `prefix_uri` whose backbone saw the latest day that this run allows; of equals, the youngest.

    Torn folders are passed over, with a warning that names them. Folders that are no backbone are not looked at.

    Raises:
        BackboneError: no folder is fit, with the reason of each.
    """
    fit: list[tuple[datetime.date, datetime.datetime, str]] = []
    unfit: list[str] = []
    for name in storage.list_dirs(prefix_uri):
        uri = storage.join(prefix_uri, name)
        if not storage.exists(storage.join(uri, BACKBONE)):
            continue
        if not is_complete(uri):
            _log.warning("passing over the torn backbone %s: %s is missing", uri, COMPLETE)
            continue
        try:
            backbone = read_backbone(uri)
        except BackboneError as fault:
            _log.warning("passing over a damaged backbone: %s", fault)
            continue
        if faults := date_faults(backbone, config, date, window_first_day):
            unfit.append(f"{name}: {faults[0]}")
        else:
            fit.append((backbone.trained_through, backbone.created_at, uri))
    if not fit:
        raise BackboneError(f"no fit backbone under {prefix_uri}" + "".join(f"\n  {reason}" for reason in unfit))
    return max(fit)[2]
