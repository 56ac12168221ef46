import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from kvloft.transfer import Arena, ArenaError, arena, available_memory
from kvloft.transfer.arena import PAGE

SLOT = 3 * PAGE
Open = Callable[..., Arena]


@pytest.fixture
def name() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(*args: object, **options: object) -> Arena:
            made = Arena(*args, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield open_one


def test_slots_are_distinct_memory_of_equal_size(opened: Open) -> None:
    memory = opened(None, 5, SLOT)
    for slot in range(5):
        view = memory.view(slot)
        assert (view.nbytes, view.format, view.readonly, view.contiguous) == (SLOT, "B", False, True)
        view[:] = bytes([slot + 1]) * SLOT
        view.release()
    assert memory.bytes.reshape(5, SLOT).tolist() == [[slot + 1] * SLOT for slot in range(5)]


@pytest.mark.parametrize("slot", [-1, 5])
def test_no_view_beyond_the_slots(opened: Open, slot: int) -> None:
    with pytest.raises(IndexError, match=f"slot {slot}"):
        opened(None, 5, SLOT).view(slot)


def test_same_name_is_the_same_memory(opened: Open, name: str) -> None:
    ranks = [opened(name, 4, SLOT, member=f"rank {rank}") for rank in range(3)]
    assert [rank.shared for rank in ranks] == [True, False, False]
    ranks[2].view(3)[:5] = b"hello"
    assert bytes(ranks[0].view(3)[:5]) == bytes(ranks[1].view(3)[:5]) == b"hello"


def test_memory_of_another_user_is_not_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can be first to bind an abstract name. Here this process's own user plays the stranger."""
    stranger, victim = os.getuid(), os.getuid() + 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(f"\0kvloft/{victim}/{name}")
        squatter.listen()
        trap = os.memfd_create("trap")
        answers = threading.Thread(target=_offer, args=(squatter, trap))
        answers.start()
        monkeypatch.setattr(os, "getuid", lambda: victim)
        with pytest.raises(ArenaError, match=f"user {stranger} holds this name"):
            Arena(name, 2, SLOT, member="b", timeout=10)
        answers.join()
        os.close(trap)


def _offer(listener: socket.socket, fd: int) -> None:
    """Hand `fd` to whoever comes, whatever they say."""
    os.ftruncate(fd, 2 * SLOT)
    peer, _ = listener.accept()
    with peer, suppress(OSError):
        socket.send_fds(peer, [struct.pack("=QQ", 2, SLOT)], [fd])


def test_another_user_is_given_nothing(opened: Open, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened(name, 2, SLOT, member="a")
    owner = os.getuid()
    address = f"\0kvloft/{owner}/{name}"
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.connect(address)
        with suppress(OSError):
            visitor.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert socket.recv_fds(visitor, 16, 1)[:2] == (b"", [])
    assert memory.shared


def test_other_names_and_none_share_nothing(opened: Open, name: str) -> None:
    opened(name, 2, SLOT).bytes[:] = 1
    for other in (f"{name}-other", None, None):
        assert not opened(other, 2, SLOT).bytes.any()


def test_memory_outlives_who_made_it(opened: Open, name: str) -> None:
    first = Arena(name, 2, SLOT, member="a")
    second = opened(name, 2, SLOT, member="b")
    first.view(1)[:3] = b"abc"
    first.close()
    assert bytes(second.view(1)[:3]) == b"abc"


def test_a_second_engine_of_the_same_name_is_refused(opened: Open, name: str) -> None:
    opened(name, 2, SLOT, member="rank 0")
    with pytest.raises(ArenaError, match="engine_id of its own"):
        Arena(name, 2, SLOT, member="rank 0")


def test_other_sizes_are_refused(opened: Open, name: str) -> None:
    opened(name, 2, SLOT, member="a")
    with pytest.raises(ArenaError, match=f"has 2 slots of {SLOT} bytes, but this process expects 3 of {SLOT}"):
        Arena(name, 3, SLOT, member="b")


def test_many_openers_at_once_agree_on_one(opened: Open, name: str) -> None:
    made: list[Arena] = []
    threads = [
        threading.Thread(target=lambda rank=rank: made.append(opened(name, 4, SLOT, member=str(rank)))) for rank in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.shared for one in made) == 1
    made[0].bytes[:] = 7
    assert all(one.bytes.min() == 7 for one in made)


def test_close_is_idempotent_and_leaves_no_thread_or_descriptor(name: str) -> None:
    before = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    memory = Arena(name, 4, SLOT)
    memory.close()
    memory.close()
    assert (set(threading.enumerate()), len(os.listdir("/proc/self/fd"))) == before
    again = Arena(name, 9, SLOT)
    again.close()


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, PAGE), (1, 0), (1, PAGE + 1), (-1, PAGE)])
def test_senseless_sizes(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ArenaError, match="multiples of"):
        Arena(None, slots, slot_bytes)


def test_too_little_memory_is_said_at_once_and_in_numbers() -> None:
    slots = 2 * available_memory() // PAGE
    with pytest.raises(ArenaError) as caught:
        Arena(None, slots, PAGE)
    needed, free = (int(number) for number in re.findall(r"\((\d+) bytes\)", str(caught.value)))
    assert needed == slots * PAGE
    assert 0 < free < needed


def test_refusal_for_one_is_no_deadlock_for_the_next(opened: Open, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "available_memory", lambda: PAGE)
    with pytest.raises(ArenaError, match="are available"):
        Arena(name, 4, SLOT)
    monkeypatch.undo()
    assert opened(name, 4, SLOT).shared


def test_container_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 30\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert arena._room(tmp_path) == 630
    (tmp_path / "memory.max").write_text("max\n")
    assert arena._room(tmp_path) is None
    (tmp_path / "memory.limit_in_bytes").write_text("500\n")
    (tmp_path / "memory.usage_in_bytes").write_text("600\n")
    assert arena._room(tmp_path) == 0


def test_all_is_reserved_in_the_end(opened: Open) -> None:
    memory = opened(None, 64, 1 << 20)
    memory._filler.join()
    assert memory.reserved == memory.nbytes
    assert os.fstat(memory._fd).st_blocks * 512 >= memory.nbytes


def test_reserve_backs_slots_ahead_of_the_filler(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "_fill", lambda self: None)
    memory = opened(None, 64, SLOT)
    memory.reserve(np.array([60, 3, 60]))
    assert os.fstat(memory._fd).st_blocks * 512 == 2 * SLOT
    assert memory.reserved == 0


def test_memory_that_runs_out_later_is_an_error_not_a_signal(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    memory = opened(None, 64, SLOT)
    with pytest.raises(ArenaError, match=r"host memory ran out: 768 KiB were promised, 0 B could be reserved"):
        memory.reserve(np.array([1]))


HOLD = """
import sys, time
from kvloft.transfer import Arena
arena = Arena(sys.argv[1], 16, 1 << 20, member="child")
arena.view(2)[:4] = b"mine"
print("shared" if arena.shared else "joined", flush=True)
sys.stdin.read()
"""


def _hold(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.first_line = process.stdout.readline().strip()  # type: ignore[attr-defined]
    return process


def test_processes_share(opened: Open, name: str) -> None:
    child = _hold(name)
    try:
        assert child.first_line == "shared"  # type: ignore[attr-defined]
        memory = opened(name, 16, 1 << 20, member="parent")
        assert not memory.shared
        assert bytes(memory.view(2)[:4]) == b"mine"
    finally:
        child.communicate("")


def test_a_killed_engine_leaves_nothing_and_blocks_nobody(opened: Open, name: str) -> None:
    child = _hold(name)
    maps = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
    # What it shares is in no file system, so nothing is left of it there.
    assert {line.split(maxsplit=5)[-1] for line in maps if " rw-s " in line} == {"/memfd:kvloft (deleted)"}
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.communicate()
    memory = opened(name, 16, 1 << 20, member="child")
    assert memory.shared
    assert not memory.bytes.any()


def _open_in_worker(name: str, queue: "multiprocessing.Queue[bool]") -> None:
    memory = Arena(name, 4, SLOT, member="fork")
    queue.put(bool((memory.bytes == 5).all()))
    memory.close()


def test_a_spawned_worker_joins(opened: Open, name: str) -> None:
    memory = opened(name, 4, SLOT, member="parent")
    memory.bytes[:] = 5
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[bool] = context.Queue()
    worker = context.Process(target=_open_in_worker, args=(name, queue))
    worker.start()
    assert queue.get(timeout=60)
    worker.join()
