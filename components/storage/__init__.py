"""All access to the object store: local paths and every fsspec URI, one set of rules.

A write is whole or absent, whatever interrupts it: a local file is written aside and renamed, a remote object is put
at once. `create_*` never replaces. Listings are never cached. What fails is a `StorageError` of one line, except that
reading an absent file is a FileNotFoundError, and creating one that is there a FileExistsError.
"""

from thaw.components.storage.documents import (
    copy_file,
    create_bytes,
    create_json,
    digest,
    encode_json,
    exists,
    is_file,
    read_bytes,
    read_json,
    upload_tree,
    write_bytes,
    write_json,
)
from thaw.components.storage.errors import StorageError
from thaw.components.storage.filesystem import join, open_filesystem
from thaw.components.storage.listing import FileInfo, content_version, find_files, list_dirs, list_files

__all__ = [
    "FileInfo",
    "StorageError",
    "content_version",
    "copy_file",
    "create_bytes",
    "create_json",
    "digest",
    "encode_json",
    "exists",
    "find_files",
    "is_file",
    "join",
    "list_dirs",
    "list_files",
    "open_filesystem",
    "read_bytes",
    "read_json",
    "upload_tree",
    "write_bytes",
    "write_json",
]
