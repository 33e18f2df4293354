import subprocess
import sys


def test_versions_are_told_without_importing_torch() -> None:
    script = """
import sys
from thaw.components.runs import versions
found = versions()
assert {"python", "thaw", "torch", "torchrec", "kfp", "pyarrow"} <= found.keys(), found
assert any(name.startswith("fbgemm-gpu") for name in found), found
assert not {"torch", "torchrec", "fbgemm_gpu", "kfp"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
