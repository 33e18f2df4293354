"""Reads and writes the files of torch.distributed.checkpoint in an object store.

Differs from torch's own FsspecWriter (torch 2.13, checkpoint/_fsspec_filesystem.py) in three points:
  * a file whose writing failed half way is not published: there the `with` commits what it has on its way out;
  * a large tensor has a file of its own: the writer keeps the host copies of one file's tensors until that file is
    done, which in one file a rank is as much memory as the rank's whole share;
  * only local files are synced: for others torch calls `os.sync()`, which flushes every disk of the machine.

The format is torch's, and torch's own readers read it.
"""

import hashlib
import io
import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.spec import AbstractBufferedFile
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from thaw.components.storage.errors import reporting
from thaw.components.storage.filesystem import is_local, join, open_filesystem

LARGE_TENSOR_BYTES = 64 * 2**20


class _Store(FileSystemBase):
    """The file operations that torch asks for, on the filesystem of one URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.filesystem, self.root = open_filesystem(uri)
        self.digests: dict[str, str] = {}
        """`sha256:<hex>` of every file that was written here, by name."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        # An error travels to the other ranks pickled; a StorageError can, those of the filesystems can't all.
        with reporting(join(self.uri, _name(path)), "read" if mode == "rb" else "write"):
            stream = self.filesystem.open(path, mode)
            if mode == "rb":
                with stream:
                    yield stream
                return
            remembering = _Remembering(stream)
            try:
                yield remembering
            except BaseException:
                self._discard(stream, path)
                if remembering.error is not None:
                    raise remembering.error from None
                raise
            finally:
                stream.close()
            self.digests[_name(path)] = f"sha256:{remembering.sha256.hexdigest()}"

    def _discard(self, stream: Any, path: str) -> None:
        if isinstance(stream, AbstractBufferedFile):
            stream.discard()
            stream.closed = True  # else close() would publish the part that was written
        else:
            with suppress(OSError):  # the rest of its buffer may fail as the write did
                stream.close()
            self.filesystem.rm_file(path)

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}/{suffix}"

    def rename(self, path: Any, new_path: Any) -> None:
        self.filesystem.mv(path, new_path)
        self.digests[_name(new_path)] = self.digests.pop(_name(path))

    def init_path(self, path: Any) -> str:
        return str(path)

    def mkdir(self, path: Any) -> None:
        self.filesystem.makedirs(path, exist_ok=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str)

    def exists(self, path: Any) -> bool:
        return bool(self.filesystem.exists(path))

    def rm_file(self, path: Any) -> None:
        self.filesystem.rm_file(path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


class _Remembering(io.RawIOBase):
    """A stream that keeps the error of a write: torch's archive writer meets it, and raises one of its own instead.
    And it keeps the digest of what was written; torch writes from front to back."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | None = None
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            num_bytes = int(self._stream.write(data))
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data[:num_bytes])
        return num_bytes

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())


class StoreWriter(FileSystemWriter):
    """Writes a checkpoint's tensors under a URI."""

    fs: Any

    def __init__(self, uri: str) -> None:
        store = _Store(uri)
        super().__init__(store.root, sync_files=is_local(store.filesystem))
        self.fs, self.path = store, store.root

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors: each large one in a file of its own, the others in one."""
        small, files = [], []
        for item in plan.items:
            is_large = (item.tensor_storage_size() or 0) >= LARGE_TENSOR_BYTES
            files.append([item]) if is_large else small.append(item)
        if small:
            files.insert(0, small)
        waiting: queue.Queue = queue.Queue()
        for number, items in enumerate(files):
            name = f"{plan.storage_data.prefix}{number}.distcp"
            waiting.put((self.fs.concat_path(self.path, name), name, items))
        return self._write_data(planner, waiting)


class StoreReader(FileSystemReader):
    """Reads a checkpoint's tensors under a URI."""

    fs: Any

    def __init__(self, uri: str) -> None:
        store = _Store(uri)
        super().__init__(store.root)
        self.fs, self.path = store, store.root
