"""Whether the installed packages are the ones that Thaw was locked with, told without importing them."""

from importlib import metadata
from typing import Literal

PINNED = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu")


class VersionError(ValueError):
    """Another version is installed than Thaw was locked with."""


def check_versions(device: Literal["cpu", "cuda"]) -> None:
    """Pass an environment that can train on this device.

    torch, torchrec and fbgemm fit together in one combination only; a wrong one shows as an undefined symbol or a
    missing operator in the middle of a run. The versions are those of Thaw's own metadata.

    Raises:
        VersionError: one line that names every package at fault, what is there and what is needed.
    """
    pins = _pins()
    fbgemm, other = ("fbgemm-gpu-cpu", "fbgemm-gpu") if device == "cpu" else ("fbgemm-gpu", "fbgemm-gpu-cpu")
    faults = []
    for package in ("torch", "torchrec", fbgemm):
        found = _installed(package)
        if found is None or found.split("+")[0] != pins[package]:
            faults.append(f"{package} is {found or 'not installed'}, needed is {pins[package]}")
    # Both distributions install the same top-level package: whichever came last has overwritten the other.
    if _installed(other) is not None:
        faults.append(f"{other} is installed too and shares its files with {fbgemm}")
    if faults:
        lock = "images/cpu.lock" if device == "cpu" else "images/cuda.lock"
        raise VersionError(
            f"training.device is {device}, and {'; '.join(faults)}: install {lock} with --no-deps into a new "
            f"environment, or set training.device to the other"
        )


def _pins() -> dict[str, str]:
    pins = {}
    for requirement in metadata.requires("thaw") or ():
        package, _, version = requirement.split(";")[0].strip().partition("==")
        if package in PINNED:
            pins[package] = version
    return pins


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
