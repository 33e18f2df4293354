"""The example of the README, run as a stranger would."""

import os
import re
import subprocess
import sys
from pathlib import Path

from thaw.components.trainer import semi_sync


def test_the_readme_trains_torchrecs_dlrm_on_two_ranks(tmp_path: Path) -> None:
    readme = Path(semi_sync.__file__).with_name("README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(example.splitlines()) < 60
    script = tmp_path / "train_dlrm.py"
    script.write_text(example)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([0-9.]+)", run.stdout)]
    assert len(losses) == 4 and all(0 < loss < 2 for loss in losses)
