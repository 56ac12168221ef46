"""The laws of an offload manager, for any `OffloadingManager` of vLLM's.

class TestMyManager(ManagerLaws):
    def make_manager(self, capacity):
        return MyManager(num_chunks=capacity, enable_events=True)

    def make_context(self, name):
        return ReqContext(req_id=name)

Needs no vLLM itself: answers are recognized by their names, and specs by their `block_ids`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvloft.testing.scheduler import TOKENS, World, look, make_key, make_keys, prefix

_law = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class ManagerLaws:
    """Subclass it, say how to make a manager and a request context, and let pytest collect it."""

    capacity: ClassVar[int] = 8

    def make_manager(self, capacity: int) -> Any:
        """A manager for so many chunks that collects KV events."""
        raise NotImplementedError

    def make_context(self, name: str) -> Any:
        """A vLLM `ReqContext` of that id."""
        raise NotImplementedError

    # What the tests are written in.

    def request(self, manager: Any, name: str, keys: Sequence[bytes] = ()) -> Any:
        """A request as the scheduler announces it: with the end position of each of its keys."""
        context = self.make_context(name)
        for at, key in enumerate(keys, 1):
            context.set_offload_key_position(key, at * TOKENS)
        manager.on_new_request(context)
        return context

    def serve(self, manager: Any, name: str, keys: Sequence[bytes]) -> Any:
        """A request from start to end: it loads what is there of its prefix and stores the rest."""
        context = self.request(manager, name, keys)
        hits = prefix(manager, context, keys)
        if hits:
            manager.prepare_load(keys[:hits], context)
            manager.complete_load(set(keys[:hits]), context)
        output = manager.prepare_store(keys[hits:], context)
        assert output is not None
        manager.complete_store(set(output.keys_to_store), context)
        manager.on_request_finished(context)
        return output

    # Looking.

    def test_a_block_is_missing_then_pending_then_ready(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(3))
        context = self.request(manager, "a", keys)
        assert look(manager, context, keys) == ["MISS"] * 3
        manager.prepare_store(keys, context)
        assert look(manager, context, keys) == ["HIT_PENDING"] * 3
        manager.complete_store({keys[0], keys[2]}, context)
        assert look(manager, context, keys) == ["HIT", "HIT_PENDING", "HIT"]

    def test_a_lookup_counts_as_no_access(self) -> None:
        """Waiting requests look the same keys up in every step; that must not change what leaves."""
        evicted = []
        for looks in (0, 50):
            manager = self.make_manager(self.capacity)
            for start in (0, 10, 20):
                self.serve(manager, f"fill {start}", make_keys(range(start, start + self.capacity // 2)))
            waiting = self.request(manager, "waiting", make_keys(range(10, 10 + self.capacity)))
            for _ in range(looks):
                look(manager, waiting, make_keys(range(10, 10 + self.capacity)))
            evicted.append(self.serve(manager, "new", make_keys(range(40, 43))).evicted_keys)
        assert evicted[0] == evicted[1]

    # Storing.

    def test_a_plan_follows_the_offer(self) -> None:
        """What is stored is a part of the offer in its order, with slots to match: the scheduler rebuilds the GPU's side
        in that order, and another would be silent corruption."""
        manager = self.make_manager(self.capacity)
        self.serve(manager, "before", make_keys([2, 4]))
        offer = [*make_keys([7, 2, 5]), *make_keys([6, 4, 1], group=1), make_key(4), make_key(3)]
        context = self.request(manager, "a")
        output = manager.prepare_store(offer, context)
        assert output.keys_to_store == [key for key in offer if key not in make_keys([2, 4])]
        ids = list(output.store_spec.block_ids)
        assert len(ids) == len(output.keys_to_store) == len(set(ids))
        assert set(ids) <= set(range(self.capacity))
        manager.complete_store(set(output.keys_to_store), context)
        reader = self.request(manager, "b")
        assert list(manager.prepare_load(output.keys_to_store, reader).block_ids) == ids

    def test_a_repeated_key_is_one_block(self) -> None:
        manager = self.make_manager(self.capacity)
        key, other = make_keys([1, 2])
        context = self.request(manager, "a")
        output = manager.prepare_store([key, other, key], context)
        assert output.keys_to_store == [key, other] and len(output.store_spec.block_ids) == 2
        manager.complete_store({key, other}, context)
        manager.on_request_finished(context)
        self.all_slots_work(manager)

    def test_a_key_loaded_twice_in_a_call_is_released_by_one_completion(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(2))
        self.serve(manager, "before", keys)
        context = self.request(manager, "a")
        one = dict(zip(keys, manager.prepare_load(keys, context).block_ids, strict=True))
        manager.complete_load(set(keys), context)
        asked = [keys[1], keys[0], keys[1]]
        assert list(manager.prepare_load(asked, context).block_ids) == [one[key] for key in asked]
        manager.complete_load(set(asked), context)
        manager.on_request_finished(context)
        self.all_slots_work(manager)

    def test_a_block_offered_again_stays(self) -> None:
        """Room is never made at the cost of a block named in the same call."""
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(self.capacity))
        self.serve(manager, "before", keys)
        context = self.request(manager, "a")
        output = manager.prepare_store([*keys[:2], *make_keys(range(50, 50 + self.capacity - 2))], context)
        assert sorted(output.evicted_keys) == sorted(keys[2:])
        assert look(manager, context, keys[:2]) == ["HIT"] * 2

    def test_a_refused_store_changes_nothing(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(self.capacity))
        self.serve(manager, "before", keys)
        reader, writer = self.request(manager, "reader"), self.request(manager, "writer")
        manager.prepare_load(keys[1:], reader)
        list(manager.take_events())
        assert manager.prepare_store(make_keys([50, 51]), writer) is None
        assert look(manager, writer, keys) == ["HIT"] * len(keys)
        assert look(manager, writer, make_keys([50, 51])) == ["MISS"] * 2
        assert list(manager.take_events()) == []
        assert manager.prepare_store(make_keys([50]), writer).evicted_keys == keys[:1]

    def test_a_request_does_not_evict_its_own_chain(self) -> None:
        """What would push out the head of the prompt that it belongs to is of no use."""
        manager = self.make_manager(12)
        keys = make_keys(range(16))
        context = self.request(manager, "long", keys)
        for start in range(0, 12, 4):
            assert manager.prepare_store(keys[start : start + 4], context) is not None
            manager.complete_store(set(keys[start : start + 4]), context)
        assert manager.prepare_store(keys[12:], context) is None
        manager.on_request_finished(context)
        assert prefix(manager, context, keys) == 12

    def test_a_request_does_not_evict_what_it_loaded(self) -> None:
        manager = self.make_manager(self.capacity)
        old, new = make_keys(range(4)), make_keys(range(4, self.capacity))
        self.serve(manager, "first", old)
        self.serve(manager, "second", make_keys(range(20, 20 + self.capacity - 4)))
        context = self.request(manager, "again", [*old, *new])
        manager.prepare_load(old, context)
        manager.complete_load(set(old), context)
        output = manager.prepare_store(new, context)
        assert not set(output.evicted_keys) & set(old)
        assert look(manager, context, old) == ["HIT"] * 4

    def test_a_failed_store_is_a_miss_and_frees_its_slots(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(self.capacity))
        context = self.request(manager, "a", keys)
        manager.prepare_store(keys, context)
        manager.complete_store(set(keys), context, success=False)
        assert look(manager, context, keys) == ["MISS"] * len(keys)
        assert len(manager.prepare_store(keys, context).keys_to_store) == len(keys)
        manager.complete_store(set(keys), context)
        assert look(manager, context, keys) == ["HIT"] * len(keys)

    # Completions.

    def test_a_completion_may_come_twice_and_after_the_end(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(4))
        context = self.request(manager, "a", keys)
        manager.prepare_store(keys, context)
        manager.on_request_finished(context)
        manager.complete_store(set(keys), context)
        manager.complete_store(set(keys), context)
        manager.complete_store(set(keys), context, success=False)
        assert look(manager, context, keys) == ["HIT"] * 4
        reader = self.request(manager, "b", keys)
        manager.prepare_load(keys, reader)
        manager.on_request_finished(reader)
        manager.complete_load(set(keys), reader)
        manager.complete_load(set(keys), reader)
        self.all_slots_work(manager)

    def test_a_second_reader_keeps_what_the_first_is_done_with(self) -> None:
        manager = self.make_manager(self.capacity)
        keys = make_keys(range(self.capacity))
        self.serve(manager, "before", keys)
        first, second, writer = (self.request(manager, name) for name in ("first", "second", "writer"))
        manager.prepare_load(keys, first)
        manager.prepare_load(keys[:2], second)
        manager.complete_load(set(keys), first)
        output = manager.prepare_store(make_keys(range(50, 50 + self.capacity - 2)), writer)
        assert sorted(output.evicted_keys) == sorted(keys[2:])
        assert manager.prepare_store(make_keys([70]), writer) is None

    def test_a_late_completion_does_not_decide_what_leaves(self) -> None:
        evicted = []
        for flip in (False, True):
            manager = self.make_manager(self.capacity)
            chains = [make_keys(range(start, start + self.capacity // 2)) for start in (0, 10)]
            contexts = [self.request(manager, f"{number}", keys) for number, keys in enumerate(chains)]
            for keys, context in zip(chains, contexts, strict=True):
                manager.prepare_store(keys, context)
            done = list(zip(chains, contexts, strict=True))
            for keys, context in reversed(done) if flip else done:
                for key in reversed(keys) if flip else keys:
                    manager.complete_store({key}, context)
            for context in contexts:
                manager.on_request_finished(context)
            evicted.append(self.serve(manager, "new", make_keys(range(30, 30 + self.capacity // 2))).evicted_keys)
        assert evicted[0] == evicted[1]

    # Reset.

    def test_a_reset_drops_all_and_stale_completions_do_nothing(self) -> None:
        manager = self.make_manager(self.capacity)
        ready, writing = make_keys(range(2)), make_keys(range(10, 13))
        self.serve(manager, "before", ready)
        context = self.request(manager, "live", writing)
        reader = self.request(manager, "reader", ready)
        manager.prepare_load(ready, reader)
        manager.prepare_store(writing, context)
        manager.reset_cache()
        assert look(manager, context, [*ready, *writing]) == ["MISS"] * 5
        manager.complete_load(set(ready), reader)
        manager.complete_store(set(writing), context)
        assert look(manager, context, [*ready, *writing]) == ["MISS"] * 5
        output = manager.prepare_store(writing, context)
        assert output.keys_to_store == writing
        manager.complete_store(set(writing), context)
        assert look(manager, context, writing) == ["HIT"] * 3
        manager.on_request_finished(context)
        manager.on_request_finished(reader)
        self.all_slots_work(manager)

    # All at once.

    @given(data=st.data())
    @_law
    def test_any_life_keeps_bytes_and_books_right(self, data: st.DataObject) -> None:
        """Random requests against a naive model: answers, refusals, slots, bytes and events."""
        world = World(self, data.draw)
        for _ in range(data.draw(st.integers(10, 50))):
            world.step()

    def all_slots_work(self, manager: Any) -> None:
        """Nothing has leaked: as many blocks as fit can be stored, twice over."""
        for start in (1000, 2000):
            output = self.serve(manager, f"fill {start}", make_keys(range(start, start + self.capacity)))
            assert sorted(output.store_spec.block_ids) == list(range(self.capacity))
