"""Where the server is and who asks. Neither a token nor a password is ever in a message."""

import os
from urllib.parse import urlsplit

HOST_VARIABLE = "KF_PIPELINES_ENDPOINT"
"""Environment variable with the server's URL, of KFP's own client."""
TOKEN_VARIABLE = "KF_PIPELINES_TOKEN"
"""Environment variable with a bearer token; what stands on a command line is seen by everyone on the machine."""


def named_host(host: str | None) -> str | None:
    """The server's URL as the user names it; None where KFP's client is to find it.

    Args:
        host: Of the option.

    Raises:
        ValueError: it is no URL, or a password is in it.
    """
    parameter, url = ("--host", host) if host else (HOST_VARIABLE, os.environ.get(HOST_VARIABLE))
    if not url:
        return None
    if has_user(url):
        raise ValueError(f"{parameter}: a user or password in an address is seen by everyone; set {TOKEN_VARIABLE}")
    if not url.isprintable() or any(map(str.isspace, url)):
        raise ValueError(f"{parameter}: {url!r} is no URL; give one as https://kubeflow.example.com/pipeline")
    return url


def token() -> str | None:
    """The bearer token of the environment, or None.

    Raises:
        ValueError: no header can hold it.
    """
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError(f"{TOKEN_VARIABLE}: a token has no blanks, line breaks or letters beyond ASCII; this one has")
    return text or None


def has_user(url: str) -> bool:
    """Whether a URL names a user, as `https://user:password@host`."""
    return "@" in urlsplit(url if "://" in url else f"//{url}").netloc
