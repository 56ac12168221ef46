"""Everything that differs between the supported versions of vLLM, and what we use of it beyond its public names.

Raises:
    MissingExtra: vLLM is not installed.
    UnsupportedVersion: it is another version than 0.32 or 0.33.
"""

import re
from collections.abc import Sequence
from typing import cast

from kvloft.errors import MissingExtra, UnsupportedVersion

try:
    from vllm import __version__ as vllm_version
except ImportError as error:
    raise MissingExtra("vllm", "kvloft.vllm") from error

SUPPORTED = ((0, 32), (0, 33))
"""Major and minor numbers of the vLLM releases that the tests run against."""


def parse_release(version: str) -> tuple[int, int]:
    """Major and minor number of a supported version of vLLM.

    Raises:
        UnsupportedVersion: it is none of `SUPPORTED`.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.|$)", version)
    release = (int(match[1]), int(match[2])) if match else None
    if release not in SUPPORTED:
        names = " and ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise UnsupportedVersion(
            f"vLLM {version} is installed; this kvloft supports vLLM {names}. Install one of these, "
            f"or a kvloft release that names yours: pip install 'vllm>=0.32,<0.34'"
        )
    return release


RELEASE = parse_release(vllm_version)

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
