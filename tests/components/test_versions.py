from importlib import metadata

import pytest

from thaw.components.versions import VersionError, check_versions


def test_the_locked_environment_passes():
    check_versions("cpu")


def test_another_version_is_named_in_one_line(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9" if name == "torchrec" else real(name))
    with pytest.raises(VersionError) as fault:
        check_versions("cpu")
    assert "torchrec is 9.9.9, needed is 1.8.0" in str(fault.value) and "\n" not in str(fault.value)


def test_the_cpu_build_is_refused_where_cuda_is_asked_for():
    with pytest.raises(VersionError, match="fbgemm-gpu is not installed"):
        check_versions("cuda")
