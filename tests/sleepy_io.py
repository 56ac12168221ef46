"""Every I/O call that Python has, half asleep and telling on which thread it was made."""

import builtins
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvloft.tiers.disk import Files

CALLS = [
    *("open", "close", "read", "write", "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "lseek", "sendfile"),
    *("fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate", "posix_fadvise", "copy_file_range"),
    *(
        "stat",
        "lstat",
        "fstat",
        "statvfs",
        "fstatvfs",
        "access",
        "listdir",
        "scandir",
        "readlink",
        "utime",
        "chmod",
        "fchmod",
    ),
    *("mkdir", "makedirs", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink"),
]


def slowed(call: Callable[..., Any], what: str, seen: list[tuple[str, int]]) -> Callable[..., Any]:
    """The same call, half asleep, and telling on which thread it was made."""

    def made(*arguments: Any, **named: Any) -> Any:
        seen.append((what, threading.get_ident()))
        time.sleep(0.002)
        return call(*arguments, **named)

    return made


@pytest.fixture(name="io")
def sleepy_io(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Every I/O call that Python has sleeps, and is noted with its thread."""
    seen: list[tuple[str, int]] = []
    for name in CALLS:
        if hasattr(os, name):
            monkeypatch.setattr(os, name, slowed(getattr(os, name), f"os.{name}", seen))
    monkeypatch.setattr(builtins, "open", slowed(builtins.open, "open", seen))
    for name in ("read", "write", "read_slots", "write_slots", "allocate", "open", "close", "stat", "list", "free_bytes"):
        monkeypatch.setattr(Files, name, slowed(getattr(Files, name), f"Files.{name}", seen))
    monkeypatch.setattr(mmap, "mmap", type("mmap", (mmap.mmap,), {"flush": slowed(mmap.mmap.flush, "mmap.flush", seen)}))
    yield seen
