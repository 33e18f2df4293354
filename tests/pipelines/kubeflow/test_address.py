import http.server
import ssl
import subprocess
import threading

import pytest
from click.testing import CliRunner
from kfp_server import Fault

from thaw.pipelines.cli import main

DATE = ["--date", "2026-03-02"]


def test_nobody_at_the_address_is_one_line(config_options, gcs_uri, thaw, kfp_server):
    host, kfp_server.host = kfp_server.host, "http://127.0.0.1:9"
    result = thaw("submit", *config_options, *DATE, "--root", gcs_uri)
    kfp_server.host = host
    assert result.exit_code == 1
    assert "http://127.0.0.1:9 did not say how it is, no answer:" in result.output
    assert "refused" in result.output and "Traceback" not in result.output


@pytest.fixture(scope="session")
def tls_host(tmp_path_factory):
    """An HTTPS address whose certificate nobody vouches for."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate"), "-subj", "/CN=localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_certificate_that_nobody_vouches_for_is_one_line(config_options, gcs_uri, tls_host):
    options = [*config_options, *DATE, "--root", gcs_uri, "--host", tls_host]
    result = CliRunner().invoke(main, ["submit", *options])
    assert result.exit_code == 1, result.output
    assert result.output.startswith(f"Error: {tls_host} did not say how it is, no answer: ")
    assert "CERTIFICATE_VERIFY_FAILED" in result.output and len(result.output.splitlines()) == 1


def test_no_address_at_all_is_one_line_that_says_where_to_give_it(config_options, gcs_uri):
    result = CliRunner().invoke(main, ["submit", *config_options, *DATE, "--root", gcs_uri])
    assert result.exit_code == 1
    assert result.output == ("Error: no address of Kubeflow Pipelines: give --host URL, or set KF_PIPELINES_ENDPOINT\n")


def test_a_password_in_the_address_is_refused_and_not_repeated(config_options, gcs_uri, monkeypatch):
    command = ["submit", *config_options, *DATE, "--root", gcs_uri]
    address = "https://ann:hunter2@kubeflow.example"
    by_option = CliRunner().invoke(main, [*command, "--host", address])
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", address)
    by_variable = CliRunner().invoke(main, command)
    assert by_option.output.startswith("Error: --host: ") and by_variable.output.startswith("Error: KF_PIPELINES_END")
    for result in (by_option, by_variable):
        assert result.exit_code == 1 and "KF_PIPELINES_TOKEN" in result.output and "hunter2" not in result.output


@pytest.mark.parametrize("status", [401, 302])
def test_a_server_that_wants_a_login_is_one_line_that_says_how(submit, kfp_server, status):
    kfp_server.faults.append(Fault("GET", "/healthz", status=status, body="<html>Log in</html>"))
    result = submit()
    assert result.exit_code == 1
    assert f"{status} " in result.output and "set KF_PIPELINES_TOKEN" in result.output


@pytest.mark.parametrize("text", ["secret", "secret\n", " secret\r\n"])
def test_a_token_of_the_environment_goes_along(submit, kfp_server, monkeypatch, text):
    monkeypatch.setenv("KF_PIPELINES_TOKEN", text)
    assert submit().exit_code == 0
    assert set(kfp_server.tokens) == {"Bearer secret"}


@pytest.mark.parametrize("text", ["sec\nret", "sec ret", "sécret"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(submit, kfp_server, monkeypatch, text):
    monkeypatch.setenv("KF_PIPELINES_TOKEN", text)
    result = submit()
    assert result.exit_code == 1 and result.output.startswith("Error: KF_PIPELINES_TOKEN: ")
    assert text not in result.output and kfp_server.requests == []


def test_the_token_of_a_pods_volume_goes_along(submit, kfp_server, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("projected")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    assert submit().exit_code == 0
    assert set(kfp_server.tokens) == {"Bearer projected"}


def test_the_address_comes_from_where_kfps_client_takes_it(config_options, gcs_uri, kfp_server, monkeypatch):
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", kfp_server.host)
    result = CliRunner().invoke(main, ["submit", *config_options, *DATE, "--root", gcs_uri])
    assert result.exit_code == 0 and len(kfp_server.runs) == 1
