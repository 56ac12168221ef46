"""Our policies in vLLM's stock manager, beside vLLM's own, call by call. No offer is refused here: where one is, vLLM's
target drifts and ours must not."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import PROMPTS, SideBySide, conversations, key_of
from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.arc import ARCCachePolicy

from kvloft import BlockPool, Request
from kvloft.policies import ARCvLLM
from kvloft.vllm.compat import RELEASE
from kvloft.vllm.policy import KvloftCachePolicy, find_cache_policy


def same_arc(stock: ARCCachePolicy, ours: KvloftCachePolicy) -> None:
    """Both hold lists of the same sizes, and when nothing is in flight the same ghosts and target."""
    ours._settle()
    sizes, arc = ours.policy.sizes(), ours.policy
    assert (len(stock.t1), len(stock.t2)) == (sizes["t1"], sizes["t2"])
    if not ours._writing:
        assert isinstance(arc, ARCvLLM)
        assert (len(stock.b1), len(stock.b2)) == (sizes["ghost_b1"], sizes["ghost_b2"])
        assert stock.target_t1_size == arc.target


def pair(capacity: int, name: str, ours: type[KvloftCachePolicy], same) -> SideBySide:
    managers = [CPUOffloadingManager(capacity, name, enable_events=True) for _ in range(2)]
    managers[1]._policy = ours(cache_capacity=capacity)
    return SideBySide(capacity, managers, partial(same, managers[0]._policy, managers[1]._policy))


arcs = partial(pair, name="arc", ours=find_cache_policy("ARCvLLM"), same=same_arc)

other_lru = pytest.mark.skipif(RELEASE >= (0, 33), reason="vLLM 0.33's LRU ranks the blocks of unfinished requests anew")

# Our LRU lets the tail of a running request leave before its head; vLLM 0.32's lets the head leave first.
PAIRS = [pytest.param(arcs, id="arc")]


@pytest.mark.parametrize("make", PAIRS)
@given(capacity=st.integers(2, 14), data=st.data())
@settings(max_examples=80, deadline=None)
def test_same_decisions_on_random_requests(make, capacity, data):
    both = make(capacity)
    for _ in range(data.draw(st.integers(5, 60))):
        both.step(lambda options: data.draw(st.sampled_from(options)), lambda: data.draw(PROMPTS))
    both.end()


@pytest.mark.parametrize("make", PAIRS)
@pytest.mark.parametrize(("capacity", "batch"), [(60, 1000), (60, 4), (200, 16)])
def test_same_decisions_on_a_made_up_trace(make, capacity, batch):
    both = make(capacity)
    for numbers in conversations(seed=capacity + batch, requests=400):
        both.serve(numbers, batch)
    assert both.evicted > 1000


@pytest.mark.parametrize("make", PAIRS)
def test_same_decisions_on_a_public_trace(make, shared):
    both = make(1500)
    with (shared / "traces" / "mooncake_conversation.jsonl").open() as lines:
        for _, line in zip(range(250), lines, strict=False):
            both.serve(json.loads(line)["hash_ids"], 16)
    assert both.evicted > 1000


@pytest.mark.parametrize(("name", "pool_policy"), [("arc", "arc-vllm"), pytest.param("lru", "lru", marks=other_lru)])
@pytest.mark.parametrize("capacity", [60, 150])
def test_the_pool_decides_as_the_stock_manager(name, pool_policy, capacity):
    """Where the protocols coincide: each request loads its prefix, offers all its blocks at once, and ends."""
    stock, pool = CPUOffloadingManager(capacity, name), BlockPool(capacity, pool_policy)
    evicted = 0
    for number, numbers in enumerate(conversations(seed=capacity, requests=500)):
        keys = [key_of(each) for each in numbers[:capacity]]
        context, request = ReqContext(str(number)), Request(number)
        stock.on_new_request(context)
        hits = pool.match_prefix(keys)
        assert [stock.lookup(key, context).name for key in keys] == [pool.lookup(key).name for key in keys]
        stock.prepare_load(keys[:hits], context)
        stock.complete_load(keys[:hits], context)
        pool.prepare_load(keys[:hits], request)
        pool.complete_load(keys[:hits], request)
        output, plan = stock.prepare_store(keys, context), pool.prepare_store(keys, request)
        assert output is not None and plan is not None
        assert output.keys_to_store == plan.keys
        assert output.evicted_keys == plan.evicted
        stock.complete_store(set(plan.keys), context)
        pool.complete_store(set(plan.keys), request)
        stock.on_request_finished(context)
        pool.finish(request)
        evicted += len(plan.evicted)
    assert evicted > 500
