"""Requests to Kubeflow's server, by KFP's own client.

The client brings the address and the credentials, as it does for everyone; the requests are made here, so that each
has a time-out, that a short outage is ridden out, and that a refusal is one line with the server's own words.

Source: kfp and kfp_server_api 2.17.3.
"""

import contextlib
import io
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import kfp
import kfp_server_api
import urllib3
from kfp_server_api.exceptions import ApiException

from thaw.pipelines.kubeflow.address import HOST_VARIABLE, TOKEN_VARIABLE

REQUEST_TIMEOUT_S = 30
PAUSES_S: tuple[float, ...] = (1, 2, 4, 8)
"""Between the tries of one request."""
PATIENT_PAUSES_S: tuple[float, ...] = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)
"""As `PAUSES_S`, where a run is followed: an upgrade of the server takes minutes."""
_LOG_IN = f" Log in: set {TOKEN_VARIABLE}, or run where KFP's client finds its credentials."
_TRANSIENT = (408, 429, 500, 502, 503, 504)


class ServerError(OSError):
    """Kubeflow's server refused a request, or did not answer. One line: what was asked, where, its words.

    Attributes:
        status: Of HTTP; None where there was no answer.
    """

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether the same request can succeed later. It may have taken effect."""
        return self.status is None or self.status in _TRANSIENT


class Client(kfp.Client):
    """KFP's client without its way to greet a server: five tries with a stack each, in half a minute."""

    def __init__(self, host: str | None, **options: Any):
        self._is_named = host is not None
        # It warns, and prints that it finds no kubeconfig.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            super().__init__(host=host, **options)

    def get_kfp_healthz(self, sleep_duration: int = 0) -> kfp_server_api.V2beta1GetHealthzResponse:
        """What the server says of itself; its version, which KFP's model leaves out, is kept in `health`."""
        api = self._healthz_api.api_client
        if not self._is_named and self.host == kfp_server_api.Configuration().host:
            raise ServerError(f"no address of Kubeflow Pipelines: give --host URL, or set {HOST_VARIABLE}")
        api.rest_client.pool_manager.connection_pool_kw["retries"] = False  # urllib3's own, in silence
        self.health = self.ask(
            "say how it is",
            lambda: api.call_api(
                "/apis/v2beta1/healthz",
                "GET",
                response_type="object",
                auth_settings=["Bearer"],
                _return_http_data_only=True,
                _request_timeout=REQUEST_TIMEOUT_S,
            ),
            must_be_there=False,
        )
        return kfp_server_api.V2beta1GetHealthzResponse(multi_user=bool(self.health.get("multi_user")))

    @property
    def host(self) -> str:
        """The server's URL."""
        return str(self._healthz_api.api_client.configuration.host)

    def ask(
        self,
        what: str,
        request: Callable[[], Any],
        pauses_s: tuple[float, ...] | None = None,
        must_be_there: bool = True,
    ) -> Any:
        """The answer to a request that can be sent again; at once an error where nobody listens and nobody must.

        Args:
            what: What it asks for, after "did not".
            request: Sends it.
            pauses_s: Between the tries. None: `PAUSES_S`.
            must_be_there: Whether it is known that somebody listens.

        Raises:
            ServerError: it was refused, or the last try was not answered.
        """
        for pause_s in PAUSES_S if pauses_s is None else pauses_s:
            try:
                return self.call(what, request)
            except ServerError as error:
                if not error.is_transient or (error.status is None and not must_be_there):
                    raise
            time.sleep(pause_s)
        return self.call(what, request)

    def call(self, what: str, request: Callable[[], Any]) -> Any:
        """The answer to a request that is sent once; otherwise as `ask`."""
        try:
            answer = request()
        except AttributeError as error:
            # KFP's client takes a failure of TLS for an answer without a body, and decodes that.
            if not isinstance(refusal := error.__context__, ApiException):
                raise
            reason = " ".join(str(refusal.reason).split())
            raise ServerError(f"{self.host} did not {what}, no answer: {reason}") from None
        except ApiException as error:
            raise ServerError(f"{self.host} did not {what}: {_words(error)}", error.status or None) from None
        except urllib3.exceptions.HTTPError as error:
            reason = str(error).rpartition(": ")[2] or type(error).__name__
            raise ServerError(f"{self.host} did not {what}, no answer: {reason}") from None
        except (TypeError, ValueError) as error:
            raise ServerError(f"{self.host} did not {what}: its answer can't be read: {error}") from None
        # KFP's client makes an empty document of a page.
        page = self._healthz_api.api_client.last_response.data
        if not _is_object(page):
            beginning = " ".join(page.split())[:80]
            raise ServerError(
                f"{self.host} did not {what}, but gave a page to log in at, or so: {beginning!r}.{_LOG_IN}"
            )
        return answer


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _words(error: ApiException) -> str:
    """What the server says for a reason."""
    try:
        body = json.loads(error.body)
        words = str(body.get("message") or body.get("error_message") or body.get("error"))
    except (TypeError, ValueError, AttributeError):
        words = str(error.body or "").strip().partition("\n")[0][:200]
    advice = ""
    if error.status in (301, 302, 303, 307, 401):
        advice = _LOG_IN
    elif error.status == 403:
        advice = " You are known, and lack the right: give --namespace of your own profile, or ask its owner for it."
    return f"{error.status} {error.reason}. {' '.join(words.split())}{advice}".strip()
