"""What goes wrong with one request to the API server, and whether it passes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

_PASSES = {408, 410, 429, 500, 502, 503, 504}


class Fault(Exception):  # noqa: N818 - becomes an ApiError where it does not pass
    """What went wrong with one request.

    Attributes:
        status: The HTTP status; None where there was none.
        passes: Whether to ask again.
        retry_after_s: When, where the server says so.
        not_found: The object that the server says is not there; empty where it does not say which. None where it says
            no such thing: a 404 may also be the page of a proxy on the way, or of a server that is just starting.
    """

    def __init__(
        self,
        words: str,
        status: int | None = None,
        passes: bool = True,
        retry_after_s: float | None = None,
        not_found: str | None = None,
    ):
        super().__init__(words)
        self.status = status
        self.passes = passes
        self.retry_after_s = retry_after_s
        self.not_found = not_found

    def says_gone(self, name: str) -> bool:
        """Whether the server itself says that there is no object of this name."""
        return self.not_found in ("", name)


@contextmanager
def faults() -> Iterator[None]:
    """Turns what the official client raises into a Fault."""
    try:
        yield
    except ApiException as error:
        if not error.status:  # The official client's word for what TLS refused.
            raise Fault(str(error.reason), passes="CERTIFICATE_VERIFY_FAILED" not in str(error.reason)) from error
        retry_after = (error.headers or {}).get("Retry-After", "")
        said = _said(error.body)
        not_found = _not_found(said) if error.status == 404 else None
        raise Fault(
            f"{error.status} {error.reason}: {said['message']}",
            error.status,
            error.status in _PASSES or (error.status == 404 and not_found is None),
            float(retry_after) if retry_after.isdigit() else None,
            not_found,
        ) from error
    except urllib3.exceptions.HTTPError as error:
        # Also a name that can't be resolved and a port where nobody listens: the server may be starting anew.
        raise Fault(str(error)) from error


def _said(body: bytes | str | None) -> dict[str, Any]:
    """The Status that a refusal brings; of another body its beginning, as `message`."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        document = json.loads(text)
        return document | {"message": str(document["message"])}
    except (ValueError, KeyError, TypeError):
        return {"message": text.strip()[:300]}


def _not_found(said: dict[str, Any]) -> str | None:
    if (said.get("kind"), said.get("reason")) != ("Status", "NotFound"):
        return None
    return (said.get("details") or {}).get("name") or ""
