"""What our policies make of the stock manager's calls when stores are refused, fail and are offered again."""

import pytest
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvloft.vllm.policy import KvloftCachePolicy, find_cache_policy
from offloading import offloading_config


def keys_of(*numbers):
    return [make_offload_key(bytes([number]) * 32, 0) for number in numbers]


def request(manager, name, keys=()):
    context = ReqContext(name)
    for at, key in enumerate(keys, 1):
        context.set_offload_key_position(key, 16 * at)
    manager.on_new_request(context)
    return context


def serve(manager, name, keys):
    context = request(manager, name, keys)
    hits = [key for key in keys if manager.lookup(key, context).name == "HIT"]
    manager.prepare_load(hits, context)
    manager.complete_load(hits, context)
    manager.complete_store(set(manager.prepare_store(keys, context).keys_to_store), context)
    manager.on_request_finished(context)


@pytest.fixture(params=["LRU", "ARC"])
def manager(request):
    return CPUOffloadingManager(4, request.param, "kvloft.vllm")


@pytest.fixture
def arc():
    """With 1 a ghost of B1: 0 in T2; 2, 3, 4 in T1."""
    manager = CPUOffloadingManager(4, "ARC", "kvloft.vllm")
    for number in (0, 0, 1, 2, 3, 4):
        serve(manager, str(number), keys_of(number))
    assert manager._policy.policy.sizes() == {"t1": 3, "t2": 1, "ghost_b1": 1, "ghost_b2": 0}
    return manager


def settled(policy: KvloftCachePolicy):
    policy._settle()
    return policy.policy


def test_a_refused_store_teaches_nothing_and_its_retry_teaches_once(arc):
    reader, writer = request(arc, "reader"), request(arc, "writer", keys_of(1))
    arc.prepare_load(keys_of(0, 2, 3, 4), reader)
    for _ in range(5):
        assert arc.prepare_store(keys_of(1), writer) is None
    assert settled(arc._policy).target == 0
    arc.complete_load(keys_of(0, 2, 3, 4), reader)
    assert arc.prepare_store(keys_of(1), writer).keys_to_store == keys_of(1)
    assert settled(arc._policy).target == 0
    arc.complete_store(keys_of(1), writer)
    assert settled(arc._policy).target == 1
    assert arc._policy.policy.sizes() == {"t1": 2, "t2": 2, "ghost_b1": 1, "ghost_b2": 0}


def test_a_failed_store_teaches_nothing_and_its_retry_teaches_once(arc):
    writer = request(arc, "writer", keys_of(1))
    for _ in range(5):
        arc.prepare_store(keys_of(1), writer)
        arc.complete_store(keys_of(1), writer, success=False)
    assert settled(arc._policy).target == 0
    arc.prepare_store(keys_of(1), writer)
    arc.complete_store(keys_of(1), writer)
    assert settled(arc._policy).target == 1


def test_a_retry_spares_its_own_chain_too(manager):
    """vLLM announces misses only once; who asks again must be known all the same."""
    chain, other = keys_of(1, 2, 3, 4, 5, 6), keys_of(9)
    reader = request(manager, "reader")
    serve(manager, "other", other)
    manager.prepare_load(other, reader)
    writer = request(manager, "writer", chain)
    for part in (chain[:2], chain[2:3]):
        manager.complete_store(set(manager.prepare_store(part, writer).keys_to_store), writer)
    assert manager.prepare_store(chain[3:], writer) is None
    assert manager.prepare_store(keys_of(20, 21), request(manager, "somebody else")).evicted_keys
    assert manager.prepare_store(chain[3:], writer) is None
    assert sum(manager.lookup(key, writer).name == "HIT" for key in chain) == 1


def test_later_blocks_of_a_chain_may_leave_for_its_head(manager):
    chain = keys_of(1, 2, 3, 4, 5, 6)
    serve(manager, "tail", chain[2:])
    writer = request(manager, "again", chain)
    assert manager.prepare_store(chain[:2], writer).evicted_keys == [chain[5], chain[4]]


def test_blocks_that_the_gpu_served_are_spared(manager):
    """A prefix found in GPU memory is never looked up, but the scheduler knows that it comes before."""
    head, chain = keys_of(1, 2), keys_of(1, 2, 3, 4)
    serve(manager, "head", head)
    serve(manager, "other", keys_of(8, 9))
    manager.touch(keys_of(8, 9), request(manager, "visitor"))
    writer = request(manager, "again", chain)
    assert sorted(manager.prepare_store(chain[2:], writer).evicted_keys) == sorted(keys_of(8, 9))


def test_the_managers_chunks_are_kept_and_nothing_gathers(manager):
    policy = manager._policy
    for number in range(1, 60):
        context = request(manager, str(number), keys_of(number, number + 1))
        manager.prepare_store(keys_of(*range(100, 106)), context)
        output = manager.prepare_store(keys_of(number, number + 1), context)
        chunks = [policy.get(key) for key in output.keys_to_store]
        assert all(isinstance(chunk, ChunkStatus) and chunk.ref_cnt == -1 for chunk in chunks)
        manager.complete_store(set(output.keys_to_store), context)
        assert [policy.get(key) for key in output.keys_to_store] == chunks
        manager.on_request_finished(context)
    settled(policy)
    assert len(policy._chunks) == 4
    assert not policy._missed and not policy._writing and not policy._busy and not policy._landed


def test_reset_forgets_all(arc):
    writer = request(arc, "writer")
    arc.prepare_store(keys_of(7), writer)
    arc.reset_cache()
    assert arc._policy.policy.sizes() == {"t1": 0, "t2": 0, "ghost_b1": 0, "ghost_b2": 0}
    arc.complete_store(keys_of(7), writer)
    assert len(arc.prepare_store(keys_of(5, 6, 7, 8), writer).keys_to_store) == 4


@pytest.mark.parametrize("name", ["LRU", "ARC", "ARCvLLM"])
def test_two_json_lines_put_our_policy_into_vllms_own_spec(name):
    extra = {"cpu_bytes_to_use": 1 << 20, "eviction_policy": name, "cache_policy_module_path": "kvloft.vllm"}
    config = offloading_config(extra, 4096, block_tokens=16, events=True)
    manager = CPUOffloadingSpec(config).get_manager()
    assert type(manager) is CPUOffloadingManager
    assert isinstance(manager._policy, find_cache_policy(name))
    for number in range(1, 200):
        serve(manager, str(number), keys_of(number, number + 1))
    assert len(manager._policy._chunks) == 200 < manager._num_chunks


def hinted(manager, name, keys, **hints):
    context = ReqContext(name, kv_transfer_params={"kvloft": hints})
    for at, key in enumerate(keys, 1):
        context.set_offload_key_position(key, 16 * at)
    manager.on_new_request(context)
    stored = manager.prepare_store(keys, context)
    manager.complete_store(set(stored.keys_to_store), context)
    manager.on_request_finished(context)
    return stored.evicted_keys


@pytest.mark.parametrize("policy", ["LRU", "ARC", "HDI", "lru+chains"])
def test_hints_are_executed_in_the_stock_manager_too(policy):
    manager = CPUOffloadingManager(6, policy, "kvloft.vllm")
    hinted(manager, "old", keys_of(1, 2))
    hinted(manager, "over", keys_of(3, 4), session="s", last=True)
    hinted(manager, "low", keys_of(5, 6), priority=-1)
    assert hinted(manager, "new", keys_of(7, 8, 9)) == keys_of(4, 3, 6)


def test_a_closed_policy_keeps_what_comes_before_a_pinned_chunk():
    manager = CPUOffloadingManager(4, "lru+chains", "kvloft.vllm")
    serve(manager, "chain", keys_of(1, 2, 3))
    reader = request(manager, "reader")
    manager.prepare_load(keys_of(3), reader)
    serve(manager, "other", keys_of(9))
    assert manager.prepare_store(keys_of(10, 11), request(manager, "new", keys_of(10, 11))) is None
