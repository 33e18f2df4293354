"""From a URI to the filesystem that holds it."""

import logging
import os
from typing import Any

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

# gcsfs asks the Storage Control API for each bucket's layout, unless this is set before its import: where that API
# cannot be reached, every operation waits a minute first.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
# It logs, with a traceback, what it raises as well.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


READ_TIMEOUT_S = 120.0
"""After this long without an answer a request to a remote store fails, where the caller names no other time."""


def join(uri: str, *parts: str) -> str:
    """The URI of something below `uri`."""
    return "/".join([uri.removesuffix("/"), *parts]) if not uri.endswith("://") else uri + "/".join(parts)


def open_filesystem(uri: str, read_timeout_s: float = READ_TIMEOUT_S) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a URI, and the path in it.

    It keeps no listings, so what another process wrote is seen at once. Open it in the process that uses it: an
    instance from before a fork is not usable after it, and this function never hands one out.

    Args:
        uri: Any fsspec URI; a plain path is a local file.
        read_timeout_s: After this long without an answer a request fails, where the store is remote.
    """
    options: dict[str, Any] = {"use_listings_cache": False}
    protocol, _ = split_protocol(uri)
    if protocol in ("gs", "gcs"):
        options["requests_timeout"] = read_timeout_s
    elif protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        options["client_kwargs"] = {"timeout": ClientTimeout(total=read_timeout_s)}
    filesystem, path = fsspec.url_to_fs(uri, **options)
    return filesystem, path


def is_local(filesystem: fsspec.AbstractFileSystem) -> bool:
    """Whether the files are on this machine, where a write needs care of its own."""
    return isinstance(filesystem, LocalFileSystem)


def is_gcs(filesystem: fsspec.AbstractFileSystem) -> bool:
    """Whether the files are in Google Cloud Storage. Asked without an import of gcsfs, which takes its time."""
    return "gs" in ([filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol)
