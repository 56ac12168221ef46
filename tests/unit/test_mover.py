import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloft.transfer import Mover, Shape, copy_pages
from kvloft.transfer.mover import stretches


@pytest.fixture
def mover() -> Iterator[Mover]:
    made = Mover(2)
    yield made
    made.close()


def test_every_job_is_answered_exactly_once(mover: Mover) -> None:
    for job in range(200):
        mover.submit(job, [partial(int, part) for part in range(job % 4)], urgent=job % 3 == 0)
    assert mover.wait(timeout=30)
    answers = mover.poll()
    assert sorted(answer.job for answer in answers) == list(range(200))
    assert {answer.job: answer.nbytes for answer in answers} == {job: sum(range(job % 4)) for job in range(200)}
    assert all(answer.error is None for answer in answers)
    assert mover.poll() == []


def test_a_job_number_can_be_used_again_when_its_job_has_ended(mover: Mover) -> None:
    for _ in range(3):
        mover.submit(7, [lambda: 1])
        assert mover.wait({7}, timeout=30)
    assert [answer.job for answer in mover.poll()] == [7, 7, 7]


def test_a_running_job_number_is_refused(mover: Mover) -> None:
    gate = threading.Event()
    mover.submit(1, [lambda: int(gate.wait(30))])
    with pytest.raises(ValueError, match="job 1: already running"):
        mover.submit(1, [lambda: 1])
    gate.set()


def test_submit_does_not_wait_and_threads_are_bounded() -> None:
    mover, gate, running, most = Mover(3), threading.Event(), [0], [0]
    lock = threading.Lock()

    def part() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait(30)
        with lock:
            running[0] -= 1
        return 1

    for job in range(20):
        mover.submit(job, [part, part])
    assert mover.poll() == []
    assert not mover.wait(timeout=0.01)
    gate.set()
    assert mover.wait(timeout=30)
    assert most[0] == 3
    mover.close()


def test_parts_of_a_job_run_side_by_side(mover: Mover) -> None:
    meeting = threading.Barrier(2, timeout=30)
    mover.submit(1, [lambda: meeting.wait() * 0 + 1] * 2)
    mover.wait()
    assert mover.poll()[0].nbytes == 2


def test_urgent_jobs_go_before_others() -> None:
    mover, gate, order = Mover(1), threading.Event(), []
    mover.submit(0, [lambda: int(gate.wait(30))])
    for job in (1, 2, 3, 4):
        mover.submit(job, [lambda job=job: order.append(job) or 1] * 2, urgent=job > 2)
    gate.set()
    mover.wait()
    mover.close()
    assert order == [3, 3, 4, 4, 1, 1, 2, 2]


def test_wait_is_for_the_named_jobs_only(mover: Mover) -> None:
    gate = threading.Event()
    mover.submit(1, [lambda: int(gate.wait(30))])
    mover.submit(2, [lambda: 1])
    assert mover.wait({2, 99}, timeout=30)
    assert [answer.job for answer in mover.poll()] == [2]
    assert not mover.wait({1}, timeout=0.01)
    gate.set()
    assert mover.wait({1}, timeout=30)


def test_a_failing_part_is_answered_with_its_error(mover: Mover) -> None:
    def fail() -> int:
        raise OSError("the disk is on fire")

    mover.submit(1, [lambda: 5, fail, lambda: 6])
    mover.submit(2, [lambda: 1])
    mover.wait()
    first, second = sorted(mover.poll())
    assert str(first.error) == "the disk is on fire"
    assert first.nbytes == 11
    assert second.error is None


def test_patient_poll_waits_for_an_urgent_job_but_not_for_long(mover: Mover) -> None:
    gate = threading.Event()
    mover.submit(1, [lambda: int(gate.wait(30))], urgent=True)
    assert mover.poll(patience=0.001) == []
    threading.Timer(0.05, gate.set).start()
    assert [answer.job for answer in mover.poll(patience=30)] == [1]
    assert mover.poll(patience=30) == [], "nothing runs, so there is nothing to wait for"


def test_close_runs_what_was_submitted_and_ends_the_threads() -> None:
    before = set(threading.enumerate())
    mover = Mover(2)
    for job in range(50):
        mover.submit(job, [lambda: 1])
    mover.close()
    mover.close()
    assert len(mover.poll()) == 50
    assert set(threading.enumerate()) == before
    with pytest.raises(ValueError, match="closed"):
        mover.submit(51, [lambda: 1])


def test_no_threads_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Mover(0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_stretches_cover_all_in_order_with_constant_steps(pairs: list[tuple[int, int]]) -> None:
    offsets = np.array(pairs, np.int64).reshape(-1, 2).T
    runs = stretches(*offsets)
    assert [position for first, last in runs for position in range(first, last + 1)] == list(range(len(pairs)))
    for first, last in runs:
        for offset in offsets:
            assert len(set(np.diff(offset[first : last + 1]))) <= 1


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [
        ([], []),
        ([5], [(0, 0)]),
        ([0, 1, 2, 3], [(0, 3)]),
        ([9, 6, 3, 0], [(0, 3)]),
        ([0, 1, 2, 9, 11, 13], [(0, 2), (3, 5)]),
        ([0, 5, 6, 7], [(0, 1), (2, 3)]),
        ([0, 1, 2, 9], [(0, 2), (3, 3)]),
    ],
)
def test_stretches_are_long(offsets: list[int], runs: list[tuple[int, int]]) -> None:
    assert stretches(np.array(offsets, np.int64)) == runs


@given(data=st.data())
def test_copy_pages_copies_what_a_loop_would(data: st.DataObject) -> None:
    rows, page = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    gaps = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    spans = [(rows - 1) * (page + gap) + page for gap in gaps]
    places = 12
    count = data.draw(st.integers(0, places))
    orders = [data.draw(st.permutations(range(places)))[:count] for _ in range(2)]
    source_offsets, target_offsets = (
        np.array(order, np.int64) * (span + 3) + 2 for order, span in zip(orders, spans, strict=True)
    )
    source = np.random.default_rng(0).integers(0, 256, places * (spans[0] + 3), np.uint8)
    target = np.zeros(places * (spans[1] + 3), np.uint8)
    expected = target.copy()
    for start, goal in zip(source_offsets, target_offsets, strict=True):
        for row in range(rows):
            one, other = start + row * (page + gaps[0]), goal + row * (page + gaps[1])
            expected[other : other + page] = source[one : one + page]
    shape = Shape(rows, page, page + gaps[0], page + gaps[1])
    assert copy_pages(target, target_offsets, source, source_offsets, shape) == count * rows * page
    assert (target == expected).all()


@pytest.mark.parametrize(("source", "target"), [([0, 8, 99], [0, 8, 16]), ([0, 8, 16], [0, 8, 99]), ([-8, 0], [0, 8])])
def test_nothing_is_copied_from_or_to_outside(source: list[int], target: list[int]) -> None:
    memory = np.zeros(24, np.uint8)
    with pytest.raises(ValueError):
        copy_pages(memory.copy(), np.array(target), memory, np.array(source), Shape(1, 8, 0, 0))
