"""Hints in a request, as an OpenAI client would pass them, and what they change on a real engine."""

from pathlib import Path

import pytest
from serving import GPU_BLOCKS, text

from kvloft.vllm.engine import manager_of, run_engine


def ask(llm, prompt: list[int], hints: object = None) -> int:
    """Serve a prompt; how many of its tokens came from a cache."""
    from vllm import SamplingParams

    extra = {"extra_args": {"kv_transfer_params": {"kvloft": hints}}} if hints is not None else {}
    llm.reset_prefix_cache()
    sampling = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, **extra)
    [output] = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    # vLLM tells of what has ended in the steps that follow.
    for _ in range(100):
        llm.generate([{"prompt_token_ids": text(0, 5)}], SamplingParams(max_tokens=1), use_tqdm=False)
        if not manager_of(llm).pool.stats().writing:
            return output.num_cached_tokens
    raise AssertionError("stores have no end")


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("policy", ["lru", "arc", "hdi"])
def test_a_conversation_known_to_be_over_leaves_first(models: dict[str, Path], policy: str):
    """Room for two prompts. The older one comes back; the younger one is over, if the client says so."""
    older, younger, third = (text(seed, 200) for seed in (1, 2, 3))
    found = {}
    for told in (False, True):
        with run_engine(
            models["llama"], GPU_BLOCKS["llama"], {"cpu_bytes_to_use": "480KiB", "eviction_policy": policy}
        ) as llm:
            assert manager_of(llm).pool.capacity == 15
            ask(llm, older, {"session": "a"})
            ask(llm, younger, {"session": "b", "last": True} if told else {"session": "b"})
            ask(llm, third, {"session": "c"})
            found[told] = ask(llm, older, {"session": "a"})
    assert found[True] == 192
    # HDI keeps the older one by itself.
    assert policy == "hdi" or found[False] < 192


@pytest.mark.xdist_group("engine")
def test_malformed_hints_are_ignored_counted_and_told_once(models: dict[str, Path], caplog):
    prompt = text(1, 100)
    with run_engine(models["llama"], GPU_BLOCKS["llama"], {"cpu_bytes_to_use": "1MiB"}) as llm:
        for hints in ({"ttl": "soon"}, {"ttl": "soon"}, {"sesion": "a"}, ["no object"], 7):
            ask(llm, prompt, hints)
        assert ask(llm, prompt) == 96
        assert manager_of(llm).pool.counters.ignored_hints == 5
    told = [record.message for record in caplog.records if record.name == "kvloft.vllm.request"]
    assert len(told) == 4
    assert "ignored in a request: hints: ttl: 'soon' is not a number of seconds, 0 or more" in told


def test_kv_hints_are_read_too():
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
    from vllm.v1.kv_offload.base import ReqContext

    from kvloft.vllm.request import request_of

    actions = [
        KvHintAction(action_id="1", action_type="kvloft", action_version="1", payload={"session": "a", "last": True}),
        KvHintAction(action_id="2", action_type="other", action_version="1", payload={"session": "b"}),
    ]
    envelope = KvHintsEnvelope(protocol_version="1", message_id="m", actions=actions)
    context = ReqContext("r", kv_transfer_params={"kvloft": {"session": "z", "priority": 5}}, kv_hints=envelope)
    request = request_of(context)
    assert (request.session, request.last, request.priority) == ("a", True, 5)
    assert request_of(context) is request
