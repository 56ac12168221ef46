"""The planner: what it measures, how it prices that, and what it says."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft.errors import ConfigError
from kvloft.settings.connector import check
from kvloft.sim.advice import Target, advise, command, seconds_text, transfer_config
from kvloft.sim.cost import Prices, cost, read_prices
from kvloft.sim.flops import active_parameters, prefill_flops
from kvloft.sim.hardware import GPUS, find_gpu
from kvloft.sim.latency import Machine, TimedResult, TimedSlice
from kvloft.sim.planner import Load, Measured, Setup, grid, measure, measure_load, price
from kvloft.sim.replay import Survey
from kvloft.sim.sweep import sweep_machines
from kvloft.sim.tier import TierModel
from kvloft.traces.event import TraceRequest
from kvloft.traces.spaced import Spaced
from kvloft.traces.synth import Workload, synthesize
from kvloft.traces.trace import Trace
from kvloft.transfer.limits import Admission

GIB, TIB = 1 << 30, 1 << 40
LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
QWEN3_30B = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DISK = TierModel("disk", 0)
MACHINE = Machine(block_tokens=16, block_bytes=GIB // 512, prefill_tokens_per_second=10_000.0, gpu_blocks=100)
HOUR = Load(Survey(100, 1000, 500, 20), 1_000_000, 500.0, 3600.0, 0.0)


class Held(Trace):
    """A trace that is in memory."""

    def __init__(self, requests, block_tokens=16):
        super().__init__(Path("held"))
        self.block_tokens, self.requests = block_tokens, requests

    def __iter__(self):
        return iter(self.requests)


def setup(**given):
    fields = {"machine": MACHINE, "gpus": 1, "hosts": (0, GIB, 4 * GIB), "disks": (0,), "policies": ("lru",), "disk": DISK}
    return Setup(**fields | given)


def replayed(computed, written=0, parts=(1, 1, 1, 1), ttft=1.0):
    """A result of an hour and a million tokens, in parts of which each has so large a share of what was computed."""
    slices = [
        TimedSlice(900.0 * at, 25, 250, 100, 250_000, round(computed * part / sum(parts))) for at, part in enumerate(parts)
    ]
    return TimedResult(
        policy="lru",
        capacity_blocks=1,
        requests=100,
        seconds=3600.0,
        total_blocks=1000,
        hit_blocks={"host": 400},
        hit_ratio=0.4,
        prompt_tokens=1_000_000,
        computed_tokens=computed,
        saved_tokens=1_000_000 - computed,
        prefill_seconds=computed / 10_000,
        ttft_mean=ttft,
        ttft_percentiles={"50": ttft, "90": ttft, "99": ttft},
        bytes_loaded=1,
        bytes_stored=1,
        tier_bytes_read={},
        tier_bytes_written={"disk": written} if written else {},
        refused_stores=0,
        evicted_blocks=0,
        deferred_requests=0,
        tiers={},
        slices=slices,
    )


def measured(host, disk, computed, policy="lru", **given):
    return Measured(host, disk, policy, Admission.EVERYTHING, replayed(computed, **given))


BASE = measured(0, 0, 1_000_000)


# Prices.


def test_what_is_saved_by_hand():
    """360,000 tokens at 10,000 a second are 36 seconds of 4 GPUs in every hour: 0.96 GPU hours a day, 29.2 a month."""
    plan = price([BASE, measured(4 * GIB, 0, 640_000)], setup(gpus=4, slices=4), Prices(host_gib_month=2.0), gpu_hour=3.0)
    best = plan.best
    assert best.prefill_seconds_saved == pytest.approx(144)
    assert best.gpu_hours_saved_a_day == pytest.approx(0.96)
    assert best.saved == pytest.approx(0.04 * 730 * 3.0)
    assert best.cost.total == best.cost.host == 8.0
    assert best.net == pytest.approx(best.saved - 8.0)
    assert best.slice_nets == pytest.approx([best.net] * 4)
    assert plan.pays and plan.confidence.word == "sure" and plan.confidence.net_error == pytest.approx(0)


def test_a_disk_that_wears_out_early_costs_as_many_more():
    prices = Prices(disk_tib_month=10.0, disk_writes_a_day=0.5)
    fine = cost(prices, 0, 2 * TIB, written_a_day=1 * TIB)
    assert (fine.disk, fine.wear, fine.disk_writes_a_day) == (20.0, 1.0, 0.5)
    worn = cost(prices, GIB, 2 * TIB, written_a_day=3 * TIB)
    assert (worn.disk, worn.wear) == (60.0, 3.0)
    assert worn.total == 60.0 + prices.host_gib_month
    assert cost(prices, 0, 0, 0).total == 0


def test_it_says_when_nothing_pays():
    plan = price([BASE, measured(GIB, 0, 990_000, ttft=0.5)], setup(slices=4), Prices(host_gib_month=100.0), gpu_hour=1.0)
    assert not plan.pays and plan.best is plan.baseline and plan.runner_up
    said = advise(plan, setup(slices=4), HOUR, target())
    assert said.verdict[0] == "Caching below the GPU does not pay for this trace at these prices."
    assert "loses 99.80 USD a month" in said.verdict[1]
    assert "from 1 s to 500 ms" in said.verdict[2]
    assert said.confidence[0].startswith("Sure: in 4 of 4 parts of the trace's time, taken alone, nothing pays either.")
    assert "kv-transfer-config" not in said.command


def test_how_sure_it_is():
    """What is saved comes from two of four parts alone; in the others it costs."""
    saving = measured(GIB, 0, 500_000, parts=(1, 1, 0, 0))
    plan = price([BASE, saving], setup(slices=4), Prices(host_gib_month=1.0), gpu_hour=1.0)
    sure = plan.confidence
    assert (sure.slices, sure.agreeing, sure.word) == (4, 2, "unsure")
    assert sure.net_low == pytest.approx(-1.0) and sure.net_high > plan.best.net > 0
    assert sure.net_error > 0


def test_policies_are_compared_part_by_part():
    better = measured(GIB, 0, 500_000, "arc", parts=(1, 2, 1, 2))
    plan = price([BASE, measured(GIB, 0, 510_000, parts=(1, 1, 1, 1)), better], setup(slices=4), Prices(), gpu_hour=1.0)
    assert (plan.best.policy, plan.confidence.rival, plan.confidence.ahead) == ("arc", "lru", 2)


def test_of_equals_the_smaller_and_the_first_are_chosen():
    same = [measured(host, 0, 500_000, policy) for host in (GIB, 2 * GIB) for policy in ("lru", "arc")]
    plan = price([BASE, *same], setup(slices=4), Prices(host_gib_month=0.0), gpu_hour=1.0)
    assert (plan.best.host_bytes, plan.best.policy) == (GIB, "lru")
    plan = price([BASE, measured(GIB, 0, 1_000_000)], setup(slices=4), Prices(host_gib_month=0.0), gpu_hour=1.0)
    assert not plan.pays


OPTIONS = st.lists(
    st.builds(
        measured,
        host=st.integers(1, 64).map(lambda gib: gib * GIB),
        disk=st.integers(0, 16).map(lambda share: share * TIB // 4),
        computed=st.integers(0, 1_200_000),
        written=st.integers(0, TIB),
    ),
    max_size=12,
)
PRICE = st.floats(0, 100)


@given(OPTIONS, PRICE, PRICE, st.floats(0.1, 10), st.floats(1, 16))
def test_dearer_hardware_is_never_bought_more_of(options, host, disk, gpu_hour, times):
    """Whatever was measured: of what got dearer the answer holds no more, of GPU time no more is computed."""
    given_setup = setup(slices=4)

    def best(host, disk, gpu_hour):
        return price([BASE, *options], given_setup, Prices(host_gib_month=host, disk_tib_month=disk), gpu_hour).best

    before = best(host, disk, gpu_hour)
    assert before.net >= 0
    slack = 1e-6 * (1 + before.saved + before.cost.total)
    dearer = best(host * times + 1, disk, gpu_hour)
    assert dearer.host_bytes <= before.host_bytes or abs(dearer.net - price_of(before, host * times + 1, disk)) < slack
    worn = best(host, disk * times + 1, gpu_hour)
    assert disks(worn) <= disks(before) + 1e-9 or abs(worn.net - price_of(before, host, disk * times + 1)) < slack
    assert best(host, disk, gpu_hour * (times + 1)).computed_tokens <= before.computed_tokens + 1


def disks(option):
    """TiB bought in a month, those in place of worn ones included."""
    return option.disk_bytes / TIB * max(1.0, option.cost.wear)


def price_of(option, host, disk):
    return option.saved - host * option.host_bytes / GIB - disk * disks(option)


def test_price_files(tmp_path):
    toml, js = tmp_path / "prices.toml", tmp_path / "prices.json"
    toml.write_text('currency = "EUR"\nhost_gib_month = 1')
    js.write_text('{"gpu_hour": 2.5, "disk_writes_a_day": 3}')
    assert read_prices(toml) == Prices(currency="EUR", host_gib_month=1)
    assert read_prices(js) == Prices(gpu_hour=2.5, disk_writes_a_day=3)


def test_all_that_is_wrong_with_prices_at_once(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('host_gb_month = 1\ngpu_hour = "3"\ndisk_tib_month = -1\ndisk_writes_a_day = 0\ncurrency = 7\n')
    with pytest.raises(ConfigError) as caught:
        read_prices(file)
    said = caught.value.problems
    assert len(said) == 5 and all(str(file) in problem for problem in said)
    assert "did you mean host_gib_month?" in said[0] and "gpu_hour is '3'" in said[1]
    for content in ("currency =", "[1"):
        file.write_text(content)
        with pytest.raises(ConfigError, match="give a TOML or JSON file"):
            read_prices(file)


# Sizes and replays.


def test_a_range_is_tried_in_steps_of_two():
    assert grid(0, 512 * GIB, 5) == (0, *(gib * GIB for gib in (32, 64, 128, 256, 512)))
    assert grid(0, 3, 5) == (0, 1, 3)
    assert grid(64, 1024, 3) == (64, 256, 1024)
    assert grid(7, 7, 5) == (7,)
    assert grid(0, 8, 1) == (0, 8)


def lonely(count=60, **workload):
    """Requests that are over before the next one comes."""
    requests = synthesize(Workload(requests=count, seed=3, block_tokens=256, **workload))
    return Held([TraceRequest(r.keys, 1000.0 * at, r.input_tokens, 10) for at, r in enumerate(requests)], 256)


def small(**given):
    machine = Machine(
        block_tokens=256,
        block_bytes=1 << 20,
        prefill_tokens_per_second=50_000.0,
        **{"gpu_blocks": 0} | given.pop("machine", {}),
    )
    return setup(machine=machine, **{"hosts": (0, 64 << 20, 256 << 20, 1 << 30)} | given)


def test_more_memory_never_computes_more_with_lru():
    """Sizes from the longest prompt on: below, whole prompts are refused."""
    trace = lonely()
    load = measure_load(trace)
    longest = load.survey.longest << 20
    hosts = (longest, 2 * longest, 3 * longest, 5 * longest, 50 * longest)
    found = measure(trace, small(hosts=hosts), load, workers=1)
    assert [one.host_bytes for one in found] == [0, *hosts]
    computed = [one.result.computed_tokens for one in found]
    assert computed == sorted(computed, reverse=True)
    assert computed[-1] < computed[0] == load.prompt_tokens


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=2, max_size=30), st.integers(0, 4))
def test_nor_with_any_trace(paths, gpu_blocks):
    """Requests are paths in a tree, each over before the next one comes."""
    numbers = {}
    chains = [[numbers.setdefault(tuple(path[:end]), len(numbers)) for end in range(1, len(path) + 1)] for path in paths]
    trace = Held([TraceRequest(chain, 1000.0 * at) for at, chain in enumerate(chains)], 256)
    load = measure_load(trace)
    sizes = range(load.survey.longest, load.survey.unique + 2)
    given_setup = small(hosts=tuple(size << 20 for size in sizes), machine={"gpu_blocks": gpu_blocks})
    found = measure(trace, given_setup, load, workers=1)
    computed = [one.result.computed_tokens for one in found]
    assert computed == sorted(computed, reverse=True)
    if not gpu_blocks:
        # Of a prompt that is known to its end one token is computed all the same.
        known = [any(chain[-1] in before for before in chains[:at]) for at, chain in enumerate(chains)]
        assert computed[-1] == len(numbers) * 256 + sum(known)


def test_no_sizes_are_no_cache():
    """Nothing below the GPU is what the simulation gives without host memory, and what is too small for a block as well."""
    trace = lonely()
    load = measure_load(trace)
    given_setup = small(hosts=(0, 1 << 19), disks=(0, 1 << 19), machine={"gpu_blocks": 400})
    (only,) = measure(trace, given_setup, load, workers=1)
    plan = price([only], given_setup, Prices(), 3.0)
    assert not plan.pays and plan.best.saved == plan.best.net == plan.best.cost.total == 0
    said = advise(plan, given_setup, load, target())
    assert "No size was tried that holds as much as one block." in said.verdict
    assert said.confidence == ["Nothing was compared, so how sure this is cannot be said."]
    assert set(only.result.hit_blocks) == {"gpu"} and only.result.bytes_stored == only.result.bytes_loaded == 0
    (direct,) = sweep_machines(trace, [(given_setup.machine, "arc", 0)], load.survey, workers=1)
    assert direct.computed_tokens == only.result.computed_tokens


def test_parts_of_the_time_sum_to_the_whole():
    trace = lonely(40)
    load = measure_load(trace)
    for one in measure(trace, small(hosts=(1 << 30,), slices=5), load, workers=1):
        parts, whole = one.result.slices, one.result
        assert len(parts) == 5 and [part.start for part in parts] == [7800.0 * at for at in range(5)]
        assert [part.requests for part in parts] == [8] * 5
        assert sum(part.blocks for part in parts) == whole.total_blocks
        assert sum(part.hits for part in parts) == sum(whole.hit_blocks.values())
        assert sum(part.computed_tokens for part in parts) == whole.computed_tokens


def test_disks_are_tried_with_each_admission_and_the_best_policy():
    trace = lonely(30)
    load = measure_load(trace)
    ways = (Admission.EVERYTHING, Admission.SECOND_USE)
    told = []
    given_setup = small(hosts=(0, 64 << 20), disks=(0, 1 << 30), policies=("lru", "arc"), admissions=ways)
    found = measure(trace, given_setup, load, 1, lambda done, total: told.append((done, total)))
    assert [(one.host_bytes >> 20, one.disk_bytes >> 20, one.admission) for one in found] == [
        (0, 0, Admission.EVERYTHING),
        (64, 0, Admission.EVERYTHING),
        (64, 0, Admission.EVERYTHING),
        (64, 1024, Admission.EVERYTHING),
        (64, 1024, Admission.SECOND_USE),
    ]
    best = min(found[1:3], key=lambda one: one.result.computed_tokens)
    assert {one.policy for one in found[3:]} == {best.policy}
    everything, second = (one.result for one in found[3:])
    assert everything.tier_bytes_written["disk"] > second.tier_bytes_written["disk"]
    assert everything.computed_tokens <= best.result.computed_tokens
    assert told[-1] == (5 * load.survey.blocks, 5 * load.survey.blocks)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_what_the_trace_asks_for():
    load = measure_load(Held([TraceRequest([1, 2], 5.0, 30), TraceRequest([1], 8.0), TraceRequest([9], 15.0, 10)]))
    assert load.survey == Survey(3, 4, 3, 2)
    assert (load.prompt_tokens, load.start, load.span) == (56, 5.0, 10.0)
    assert load.context == pytest.approx((900 + 256 + 100) / 56 / 2)


def test_a_trace_without_times_needs_a_rate():
    held = Held([TraceRequest([1]), TraceRequest([2])])
    with pytest.raises(ConfigError, match="give --request-rate"):
        measure_load(held)
    spaced = Spaced(held, 4.0)
    assert [request.time for request in spaced] == [0.0, 0.25]
    assert spaced.assumptions == ["4 requests come a second, evenly."]
    with pytest.raises(ConfigError, match="no time passes"):
        measure_load(Held([TraceRequest([1], 3.0)]))


# What prefill computes.


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # 8,030,261,248 and 46.7 billion in all; without embeddings and head, and with two of eight experts.
        (LLAMA_8B, 8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096),
        (LLAMA_8B | {"num_local_experts": 8, "num_experts_per_tok": 2}, 12.62e9),
        # "37 billion activated", 1.9 of them embeddings and head.
        (DEEPSEEK_V3, 35.7e9),
        # "3.3 billion activated", 0.6 of them embeddings and head.
        (QWEN3_30B, 2.73e9),
        ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}, 12 * 12 * 768**2),
    ],
)
def test_parameters_that_a_token_meets(config, parameters):
    assert active_parameters(config) == pytest.approx(parameters, rel=2e-3)


def test_attention_costs_by_what_it_looks_at():
    active = active_parameters(LLAMA_8B)
    assert prefill_flops(LLAMA_8B, 0) == 2 * active
    assert prefill_flops(LLAMA_8B, 1000) == 2 * active + 4 * 32 * 4096 * 1000
    half = LLAMA_8B | {"sliding_window": 100, "layer_types": ["sliding_attention", "full_attention"] * 16}
    assert prefill_flops(half, 1000) == 2 * active + 4 * 16 * 4096 * 1100


def test_a_config_without_what_it_takes():
    with pytest.raises(ConfigError) as caught:
        prefill_flops({"num_hidden_layers": 2}, 1.0)
    assert [problem.split(" is ")[0] for problem in caught.value.problems] == [
        "model config: hidden_size or n_embd",
        "model config: num_attention_heads or n_head",
    ]


def test_gpus_by_name():
    assert find_gpu("h100") is GPUS["H100"]
    with pytest.raises(ConfigError, match="did you mean H100"):
        find_gpu("H1000")
    for gpu in GPUS.values():
        assert gpu.flops_fp8 is None or 1.9 < gpu.flops_fp8 / gpu.flops < 2.1


# What it says.


def target(**given):
    fields = {
        "model": "my models/llama",
        "gpu": GPUS["H100"],
        "tp": 1,
        "kv_dtype": "auto",
        "gpu_kv_bytes": 20 * GIB,
        "flops": 1e10,
        "mfu": 0.5,
    }
    return Target(**fields | given)


def bought(host=64 * GIB, disk=0, admission=Admission.EVERYTHING, policy="arc", machine=MACHINE):
    option = Measured(host, disk, policy, admission, replayed(300_000, written=GIB if disk else 0))
    free = Prices(host_gib_month=0.0, disk_tib_month=0.0)
    return price([BASE, option], setup(slices=4, machine=machine), free, gpu_hour=3.0)


def test_what_is_said_of_a_disk():
    plan = bought(disk=TIB)
    said = advise(plan, setup(slices=4, disks=(0, TIB, 2 * TIB)), HOUR, target())
    assert said.verdict[0] == "Buy 64 GiB of host memory and 1 TiB of disk (for every block); use the policy arc."
    assert "24 GiB of writes a day, 0.0234 times its size, where 1 are allowed: 2% of its endurance" in said.verdict[-1]
    assert "1.6 ms to compute" in said.loading and "from disk" in said.loading
    assert any("without a source" in text for text in said.assumptions)
    assert not said.warnings


def test_warnings():
    crowded = Load(Survey(10, 1000, 500, 400), 1_000_000, 500.0, 60.0, 0.0)
    plan = bought(host=4 * GIB)
    warnings = " ".join(advise(plan, setup(slices=4, machine=MACHINE), crowded, target()).warnings)
    assert "prefill alone would take 167% of it" in warnings
    assert "The longest prompt has 400 blocks" in warnings
    assert "Widen --host" in warnings


def test_slow_links_are_called_slow():
    slow = Machine(block_tokens=16, block_bytes=GIB, prefill_tokens_per_second=10_000.0, link_bytes_per_second=1e9)
    said = advise(bought(), setup(slices=4, machine=slow, disks=(0, TIB)), HOUR, target())
    assert "computing anew is quicker" in said.loading
    assert any("The disk is slower than computing anew" in warning for warning in said.warnings)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (1234, "1,234 s"), (1.5, "1.5 s"), (0.002, "2 ms"), (2e-6, "2 us"), (-120, "-120 s")]
)
def test_durations(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize("admission", Admission)
@pytest.mark.parametrize("disk", [0, 3 * TIB + 1])
def test_the_flags_are_what_the_spec_reads(tmp_path, disk, admission):
    pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")
    from kvloft.vllm import KvloftSpec
    from offloading import offloading_config

    machine = Machine(block_tokens=512, block_bytes=1 << 20, prefill_tokens_per_second=1.0)
    plan = bought(disk=disk, admission=admission, policy="s3-fifo", machine=machine)
    given_target = target(disk_path=str(tmp_path / "it's here"))
    said = command(plan.best, setup(machine=machine), given_target)
    words = shlex.split(said.replace("\\\n", ""))
    assert words[:3] == ["vllm", "serve", "my models/llama"]
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config == transfer_config(plan.best, setup(machine=machine), given_target)
    assert (config["kv_connector"], config["kv_role"]) == ("OffloadingConnector", "kv_both")
    assert check(config).problems == []
    extra = config["kv_connector_extra_config"]
    assert extra["block_size"] == 512
    spec = KvloftSpec(offloading_config(extra, 1 << 20, block_tokens=16, blocks_per_chunk=extra["block_size"] // 16))
    assert spec.num_chunks == 64 * GIB // (32 << 20)
    assert spec.eviction_policy == "s3-fifo"
    assert spec.extra_config["cascade"].admission is (admission if disk else Admission.EVERYTHING)
    tiers = spec.extra_config["tiers"]
    assert [(tier.name, tier.settings) for tier in tiers] == (
        [("disk", {"path": str(tmp_path / "it's here"), "capacity": disk})] if disk else []
    )


def test_the_command_line_is_one_that_vllm_takes():
    pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = shlex.split(command(bought(disk=TIB).best, setup(), target(tp=4, kv_dtype="fp8")).replace("\\\n", ""))
    given_args = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", *words[2:]])
    assert (given_args.tensor_parallel_size, given_args.kv_cache_dtype) == (4, "fp8")
    assert given_args.kv_cache_memory_bytes == 20 * GIB
    assert given_args.enable_prefix_caching is True
    assert given_args.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] == "64GiB"
