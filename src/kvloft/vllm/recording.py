"""Recording what a live engine asks of its cache, as a trace that `kvloft replay` reads."""

import atexit
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any, cast

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, get_offload_group_idx

from kvloft.errors import ConfigError
from kvloft.request import Key
from kvloft.traces.record import Asked, Recorder
from kvloft.vllm.compat import positions_of
from kvloft.vllm.request import request_of


@dataclass(slots=True)
class _Visit:
    """A request so far."""

    time: float
    served: set[Key] = field(default_factory=set)
    """Blocks that the cache gave it."""


class Recording:
    """Hands each request to a `Recorder` when it ends; no call waits.

    A request's keys are the blocks that vLLM's scheduler has named for it, in prefix order; those of several KV cache groups
    at one place stand next to each other. vLLM does not say how long a prompt is: its length is recorded as that of its
    whole blocks.

    Args:
        path: see `Recorder`.
        facts: about the run, such as policy and capacity.
        block_tokens: tokens of a block; read off the first request that has blocks if None.

    Raises:
        ConfigError: the path cannot be written to.
    """

    def __init__(self, path: str | Path, facts: Mapping[str, Any], block_tokens: int | None = None) -> None:
        self._path = Path(path)
        self._facts = facts
        self._recorder: Recorder | None = None
        self._live: dict[int, ReqContext] = {}
        """Requests that have come and not ended, by the identity of their contexts."""
        if block_tokens is not None:
            self._begin(block_tokens)
        elif not self._path.parent.is_dir():
            raise ConfigError(f"record: there is no folder {str(self._path.parent)!r}; make it first")

    def arrived(self, context: ReqContext) -> None:
        """The request has come."""
        if context.get_state(_Visit) is None:
            context.set_state(_Visit(time.monotonic()))
            self._live[id(context)] = context

    def served(self, context: ReqContext, keys: Iterable[Key]) -> None:
        """The cache has given it these blocks."""
        visit = context.get_state(_Visit)
        if visit is not None:
            visit.served.update(keys)

    def ended(self, context: ReqContext) -> None:
        """The request asks for nothing more."""
        self._live.pop(id(context), None)
        request = request_of(context)
        visit = context.get_state(_Visit)
        positions = positions_of(context)
        if visit is None or not positions:
            return
        recorder = self._recorder or self._begin(gcd(*positions.values()))
        keys = sorted(positions, key=lambda key: (positions[key], get_offload_group_idx(cast(OffloadKey, key))))
        recorder.record(
            Asked(
                keys=keys,
                time=visit.time,
                input_tokens=max(positions.values()),
                session=request.session,
                tenant=request.tenant,
                last=request.last,
                ttl=request.ttl,
                priority=request.priority,
                hits=len(visit.served),
            )
        )

    def close(self) -> None:
        """Write what waits and end the file. vLLM tells of a request's end a step late, of the last one never: those that
        are still open count as ended."""
        for context in list(self._live.values()):
            self.ended(context)
        if self._recorder is not None:
            self._recorder.close()

    def _begin(self, block_tokens: int) -> Recorder:
        self._recorder = Recorder(self._path, block_tokens, self._facts)
        # vLLM shuts its specs down, but not the policies of its stock manager.
        atexit.register(self.close)
        return self._recorder
