"""Settings of `KvloftSpec`, in `kv_connector_extra_config`. Needs no vLLM. A setting is declared here, in `SPEC`, once."""

from collections.abc import Mapping
from typing import Any

from kvloft.config import Share, nearest, shown
from kvloft.errors import ConfigError
from kvloft.fields import COUNT, FLAG, SIZE_OR_SHARE, TEXT, Field, Kind, choice, constant, count, object_schema, read_fields
from kvloft.policies import DEFAULT, is_policy, load_policy, policy_names
from kvloft.policies.admission import ADMISSIONS
from kvloft.tiers.settings import read_tiers, tiers_schema
from kvloft.transfer.arena import total_memory
from kvloft.transfer.limits import CascadeConfig, cascade_fields

OURS = "kvloft.vllm"
"""Where vLLM finds what is kvloft's."""
REFUSED = {
    "secondary_tiers": "KvloftSpec has tiers of its own; name them in tiers",
    "canonical_layout": "KvloftSpec keeps blocks in the layout of the workers; leave it out",
}
"""Settings of vLLM's own specs that have no meaning here, and why."""


def _read_cascade(value: object) -> CascadeConfig:
    if isinstance(value, CascadeConfig):
        return value
    fields = cascade_fields()
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a mapping; known settings are: {', '.join(field.name for field in fields)}")
    problems: list[str] = []
    values = read_fields(value, fields, problems, "cascade.")
    if not problems:
        try:
            return CascadeConfig(**values)
        except ConfigError as error:
            problems = [f"cascade.{problem}" for problem in error.problems]
    raise ConfigError(problems)


def _read_record(value: object) -> str:
    if isinstance(value, str) and value.endswith((".jsonl", ".jsonl.zst")):
        return value
    raise ValueError(f"{shown(value)} is not a file to record in; give a name that ends in .jsonl or .jsonl.zst")


def _read_quotas(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f'{shown(value)} is no mapping; give shares by tenant, such as {{"acme": 0.3}}')
    for tenant, share in value.items():
        if not isinstance(tenant, str):
            raise ValueError(f"{shown(tenant)} is no tenant's name; write it in quotes")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"{shown(tenant)}: {shown(share)} is no share above 0, at most 1, such as 0.3")
    return dict(value)


HOST = Field(
    "cpu_bytes_to_use",
    SIZE_OR_SHARE,
    'Host memory to use, for all ranks together; "80%" is a share of the memory of the machine, or of the container if it '
    "may use less.",
    required=True,
)
POLICY = Field(
    "eviction_policy",
    Kind(str, {"type": "string"}, "a policy's name"),
    "Which block leaves when host memory is full.",
    DEFAULT,
)
ADMISSION = Field(
    "admission",
    choice(*ADMISSIONS),
    "What host memory takes in: everything, as far as the policy finds it worth it; or no more of one large request than "
    "spares blocks that were read again and again.",
    "everything",
)
QUOTAS = Field(
    "quotas",
    Kind(
        _read_quotas,
        {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}},
        "mapping of tenants to shares above 0, at most 1",
    ),
    "By tenant, as requests name theirs in their hints: the share of host memory from which it makes room from its own "
    'blocks, such as {"acme": 0.3}.',
    {},
)
THRESHOLD = Field("store_threshold", count(0), "Store a block only when it was offered so often; below 2 at once.", 0)
TRACKER = Field("max_tracker_size", COUNT, "With `store_threshold`: blocks to keep count of.", 64_000)
OF_VLLM = (
    Field("blocks_per_chunk", COUNT, "Blocks of the engine that make one of kvloft's.", 1),
    Field("block_size", COUNT, "The same in tokens; give only one of both."),
    Field("offload_prompt_only", FLAG, "Store blocks of prompts only, not of answers.", True),
    Field("self_describing_kv_events", FLAG, "KV events say all that a subscriber must know of a block.", False),
    Field(
        "sync_load_budget_bytes",
        count(0),
        "vLLM 0.33: bytes that a step may load while it waits; 0: none.",
        0,
    ),
)
"""Read by vLLM's connector whatever the spec."""
SPEC = (
    Field("spec_name", constant("KvloftSpec"), "kvloft's manager, worker and tiers."),
    Field("spec_module_path", constant(OURS), "Where vLLM finds it."),
    HOST,
    POLICY,
    ADMISSION,
    QUOTAS,
    Field("cache_policy_module_path", TEXT, "Where to import a policy of your own from. By default kvloft knows it."),
    Field(
        "tiers",
        Kind(read_tiers, tiers_schema(), "list of tiers"),
        "Where blocks rest below host memory, the fastest first. By default nowhere.",
        (),
    ),
    Field(
        "tiers_after_reset",
        choice("forget", "keep"),
        "What becomes of the tiers' blocks when vLLM resets its caches. It does so before it sleeps, and after weights were "
        "changed in place; keep only if the weights never are.",
        "forget",
    ),
    Field(
        "cascade",
        Kind(_read_cascade, object_schema(cascade_fields()), "mapping"),
        "Bounds of what moves between host memory and the tiers.",
        CascadeConfig(),
    ),
    Field(
        "record",
        Kind(_read_record, {"type": "string", "pattern": r"\.jsonl(\.zst)?$"}, "file name ending in .jsonl or .jsonl.zst"),
        "A file to record every request in, for `kvloft replay`. By default nothing is recorded.",
    ),
    Field("transfer_threads", count(1, 64), "Threads that copy, in each rank, on the CPU platform.", 2),
    THRESHOLD,
    TRACKER,
    *OF_VLLM,
)
"""What kvloft reads, and what vLLM reads beside it."""


def read_spec(given: Mapping[str, Any], problems: list[str], strict: bool = False) -> dict[str, Any]:
    """Settings, read, with defaults for those not given; shares of host memory are resolved for this machine.

    Args:
        given: `kv_connector_extra_config`.
        problems: every fault found is added.
        strict: whether all unknown settings are faults, or only those that look like a slip of a known one; the engine's
            side lets pass what may be somebody else's.
    """
    problems += [f"{name}: is not possible: {why}" for name, why in REFUSED.items() if given.get(name)]
    rest = {name: value for name, value in given.items() if name not in REFUSED}
    values = read_fields(rest, SPEC, problems, strict=strict)
    problems += [*_policy_problems(given), *block_problems(given)]
    host = values.get(HOST.name)
    if isinstance(host, Share):
        values[HOST.name] = host.of(total_memory())
    return {field.name: field.default for field in SPEC if field not in OF_VLLM} | values


def block_problems(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the size of blocks, whatever the spec."""
    if given.get("blocks_per_chunk") is None or given.get("block_size") is None:
        return []
    return ["block_size: says the same as blocks_per_chunk; give only one of both"]


def _policy_problems(given: Mapping[str, Any]) -> list[str]:
    policy = given.get(POLICY.name)
    if policy is None or given.get("cache_policy_module_path") is not None:
        return []
    if is_policy(policy):
        try:
            load_policy(policy)
        except ConfigError as error:
            return [f"{POLICY.name}: {problem}" for problem in error.problems]
        return []
    meant = nearest(str(policy), policy_names())
    hint = f"did you mean {meant!r}? Choose" if meant else "choose"
    return [f"eviction_policy: {shown(policy)} is unknown; {hint} one of: {', '.join(policy_names())}"]
