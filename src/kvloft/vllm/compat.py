"""Everything that differs between the supported versions of vLLM, and what we use of it beyond its public names.

Raises:
    MissingExtra: vLLM is not installed.
    UnsupportedVersion: it is none of `kvloft.vllm.versions.SUPPORTED`.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any, cast

from kvloft.errors import MissingExtra
from kvloft.vllm.versions import parse_release

try:
    from vllm import __version__ as vllm_version
except ImportError as error:
    raise MissingExtra("vllm", "kvloft.vllm") from error

RELEASE = parse_release(vllm_version)
TELLS_OF_FLUSH = RELEASE >= (0, 33)
"""Whether vLLM tells, by `on_reset_flushed`, that the worker's transfers from before a reset have ended."""

from vllm.v1.kv_offload.base import Medium, OffloadingEvent, OffloadKey, ReqContext  # noqa: E402

from kvloft.request import Key  # noqa: E402


def positions_of(context: ReqContext) -> dict[Key, int]:
    """End token of each key of a request, as far as the scheduler has named them.

    vLLM's public accessor gives one key at a time, through a method of the context; sorting and counting thousands needs
    the mapping, and holding the method would tie request and context into a reference cycle.
    """
    return cast(dict[Key, int], context._offload_key_positions)


def failed_store_events(keys: Sequence[OffloadKey], medium: Medium) -> list[OffloadingEvent]:
    """What to tell vLLM when a store failed: 0.33 keeps notes about announced stores and wants to drop them; no block was
    ever announced as stored, so nobody outside hears of it."""
    if RELEASE < (0, 33):
        return []
    return [OffloadingEvent(keys=list(keys), medium=medium, removed=True, metadata_only=True)]  # type: ignore[call-arg]


def memory_facts(spec: Any) -> Any:
    """What 0.33 publishes of host memory on its info metric, as its spec knows it; 0.32 has no such metric."""
    return spec.cpu_info if RELEASE >= (0, 33) else None


def engine_config() -> Any:
    """vLLM's configuration of the engine that is just being made, or None.

    vLLM gives offloading specs and tiers a digest of it that leaves out the model's revision, weights and position encoding.
    Where it sets no current configuration (the scheduler's side), the connector that calls us holds it.
    """
    from vllm.config import VllmConfig, get_current_vllm_config_or_none

    found = get_current_vllm_config_or_none()
    frame = sys._getframe(1)
    while found is None and frame is not None:
        candidate = frame.f_locals.get("vllm_config")
        if isinstance(candidate, VllmConfig):
            found = candidate
        frame = frame.f_back  # type: ignore[assignment]
    return found


def join_logging() -> None:
    """Have kvloft's log come out where vLLM's does, in its format, unless somebody has told it where to go."""
    ours, theirs = logging.getLogger("kvloft"), logging.getLogger("vllm")
    if not ours.handlers and not logging.getLogger().handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)


def none_hash_seed() -> str:
    """What vLLM's chains of block hashes start from."""
    from vllm.v1.core.kv_cache_utils import get_none_hash_seed

    return get_none_hash_seed()
