"""The queue against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from kvloft.policies.queue import Queue

_BATCH = st.lists(st.integers(0, 12), unique=True)


@given(st.lists(st.tuples(st.sampled_from(["add", "touch", "remove", "oldest"]), _BATCH, st.integers(0, 6))))
def test_it_is_a_list(steps):
    queue, naive = Queue(), []
    for what, batch, n in steps:
        known = [key for key in batch if key in naive]
        if what == "add":
            new = [key for key in batch if key not in naive]
            queue.add(new)
            naive += new
        elif what == "touch":
            queue.touch(known)
            naive = [key for key in naive if key not in known] + known
        elif what == "remove":
            queue.remove(known)
            naive = [key for key in naive if key not in known]
        else:
            assert queue.oldest(n, set(batch)) == [key for key in naive if key not in batch][:n]
        assert list(queue) == naive and len(queue) == len(naive)
        assert all((key in queue) == (key in naive) for key in range(13))
    queue.clear()
    assert not len(queue) and not list(queue)
