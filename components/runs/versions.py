"""Which software made a result."""

import platform
from functools import cache
from importlib import metadata

_PACKAGES = ("thaw", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "kfp", "pyarrow")


@cache
def versions() -> dict[str, str]:
    """Versions by name, of what is installed; read from the packages' metadata, nothing is imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
