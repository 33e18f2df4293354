"""HTTP servers for tests and benchmarks that count what they are asked, and may take their time over each answer."""

import http.client
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class SlowServer(ThreadingHTTPServer):
    """A server of this machine, at work in a thread.

    Attributes:
        requests: Method and path, the query included, of each request so far.
        delay_s: How long each answer takes at least.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler], delay_s: float = 0):
        super().__init__(("127.0.0.1", 0), handler)
        self.delay_s = delay_s
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def at_work(self) -> Iterator["SlowServer"]:
        thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """Counts and delays; a subclass says what is answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: SlowServer

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the answer to a request."""
        raise NotImplementedError

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path))
        time.sleep(self.server.delay_s)
        status, headers, content = self.answer(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - http.server's names

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def in_front_of(url: str, delay_s: float = 0) -> SlowServer:
    """A server that passes everything on to another one."""
    upstream = urlsplit(url).netloc
    local = threading.local()

    class Proxy(Handler):
        def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPConnection(upstream)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            local.connection.request(self.command, self.path, body or None, kept)
            response = local.connection.getresponse()
            content = response.read()
            dropped = ("content-length", "transfer-encoding", "connection")
            headers = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
            return response.status, headers, content

    return SlowServer(Proxy, delay_s)


@contextmanager
def slow_gcs(delay_s: float = 0) -> Iterator[SlowServer]:
    """A server in front of the GCS server of the tests, which this process asks instead while the block runs."""
    from gcsfs import GCSFileSystem

    url = os.environ["STORAGE_EMULATOR_HOST"]
    with in_front_of(url, delay_s).at_work() as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        GCSFileSystem.clear_instance_cache()  # An instance keeps the address that it was made with.
        try:
            yield server
        finally:
            os.environ["STORAGE_EMULATOR_HOST"] = url
            GCSFileSystem.clear_instance_cache()
