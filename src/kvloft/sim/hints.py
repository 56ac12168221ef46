"""Hints that callers could have given: what a trace's future lets us tell of its conversations."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

import msgspec

from kvloft.errors import ConfigError
from kvloft.request import Key
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace


def parse_session_end(text: str) -> float:
    """The share in `session-end=0.5`.

    Raises:
        ConfigError: it reads otherwise, or is no share.
    """
    name, _, value = text.partition("=")
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if name.strip() != "session-end" or not 0 <= share <= 1:
        raise ConfigError(f"hints: {text!r} is not session-end=SHARE with a share from 0 to 1, such as session-end=0.5")
    return share


def tell_ends(requests: Iterable[TraceRequest], share: float = 1.0, seed: int = 0) -> list[TraceRequest]:
    """The same requests, where the last ones of conversations say so, for a share of the conversations drawn by `seed`.

    Conversations are the trace's own where it names sessions, else those of `conversations`. The whole trace is in memory.
    """
    held = list(requests)
    named = conversations(held)
    last = {name: place for place, name in enumerate(named)}
    chance = Random(seed)
    told = {name for name in last if chance.random() < share}
    return [
        msgspec.structs.replace(request, session=name, last=name in told and last[name] == place)
        for place, (request, name) in enumerate(zip(held, named, strict=True))
    ]


class Told(Trace):
    """Another trace, where a share of the conversations say when they end, see `tell_ends`."""

    def __init__(self, trace: Trace, share: float, seed: int = 0) -> None:
        super().__init__(trace.path)
        self._trace = trace
        self._share = share
        self._seed = seed
        self.block_tokens, self.size = trace.block_tokens, trace.size
        told = f"{share:.0%} of the conversations say when they end, drawn with seed {seed}"
        self.assumptions = [*trace.assumptions, told]

    def __iter__(self) -> Iterator[TraceRequest]:
        told = tell_ends(self._trace, self._share, self._seed)
        self.position, self.skipped = self._trace.position, self._trace.skipped
        return iter(told)


def conversations(requests: Sequence[TraceRequest]) -> list[str]:
    """The conversation of each request: its session, or else the one of the request that it goes on from.

    A request goes on from the one that brought the last block they share if it shares all of that one's blocks but the last,
    which may be partial, and more than one.
    """
    brought: dict[Key, int] = {}
    names: list[str] = []
    for place, request in enumerate(requests):
        keys = request.keys
        shared = next((n for n, key in enumerate(keys) if key not in brought), len(keys))
        before = brought[keys[shared - 1]] if shared > 1 else None
        brought.update(dict.fromkeys(keys[shared:], place))
        if request.session is not None:
            names.append(request.session)
        elif before is not None and shared >= len(requests[before].keys) - 1:
            names.append(names[before])
        else:
            names.append(f"#{place}")
    return names
