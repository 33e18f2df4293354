import pytest

from thaw.components.launcher.kubernetes.access import connect, namespace_of


@pytest.mark.parametrize(
    "text",
    [
        "clusters: [a, b",
        "a: b: c",
        "just words",
        "[]",
        "clusters: 1\nusers: 2\ncontexts: 3\ncurrent-context: x",
        "\x00",
    ],
)
@pytest.mark.parametrize("use", [connect, namespace_of])
def test_a_damaged_kubeconfig_is_one_line_that_says_so(tmp_path, monkeypatch, text, use):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_text(text)
    with pytest.raises(ValueError, match="no access to a Kubernetes cluster: ") as caught:
        use()
    assert "\n" not in str(caught.value) and "kubeconfig" in str(caught.value)
