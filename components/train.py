"""Entry of every rank of a PyTorchJob: `torchrun -m thaw.components.train <URI of job.json>`."""

import json
import os
import sys
import threading
import traceback

from thaw.components import lease, storage
from thaw.components.config import RunConfig
from thaw.components.events import emit
from thaw.components.jobs import RESULT, JobSpec

_TELL_S = 5
"""How long the last words may take: whoever reads this process's output may be gone."""


def main(job_uri: str) -> None:
    """Run one job, as one of its ranks; rank 0 writes the figures to `result.json` as its last act.

    Rank 0 ends at any time, and the job with it, once nobody renews the lease that the job was given.

    Raises:
        VersionError, RendezvousError, ValueError, OSError, RuntimeError: see the parts.
    """
    # Here, so that an error in the imports is told as any other.
    from thaw.components.select_window.window import read_window
    from thaw.components.trainer.startup import check_software, end_with_launcher, joined, quiet

    end_with_launcher()
    quiet()
    spec = JobSpec.model_validate_json(storage.read_bytes(job_uri))
    if spec.lease_timeout_s is not None and os.environ["RANK"] == "0":
        lease.watch(storage.join(spec.output_uri, lease.LEASE), spec.lease_timeout_s, lost=_die)
    config = RunConfig.model_validate_json(json.dumps(spec.config))
    check_software(config.training.device)
    from thaw.components.trainer.epoch import train_epoch
    from thaw.components.trainer.pretrain import pretrain
    from thaw.components.trainer.score import score

    window = read_window(spec.window_uri)
    with joined(spec.job, config.training.device, config.training.collective_timeout_s) as ranks:
        run = {"pretrain": pretrain, "train": train_epoch, "score": score}[spec.kind]
        figures = run(spec, config, window, ranks)
        if ranks.rank == 0:
            storage.write_json(storage.join(spec.output_uri, RESULT), figures)


def _die(error: BaseException) -> None:
    """Tell why, and end at once: no other rank is waited for, and those that wait for this one lose its connection."""
    teller = threading.Thread(target=_tell, args=(error,), daemon=True)
    teller.start()
    teller.join(_TELL_S)
    os._exit(1)


def _tell(error: BaseException) -> None:
    traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = next((frame for frame in reversed(frames) if "/thaw/" in frame.filename), None)
    emit(
        "error",
        rank=int(os.environ.get("RANK", 0)),
        type=type(error).__name__,
        message=str(error),
        where=f"{where.filename.rpartition('/thaw/')[2]}:{where.lineno}" if where else None,
    )
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException as error:
        _die(error)
