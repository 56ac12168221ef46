"""kv-cache-tester session JSON (callanjfox/kv-cache-tester): one agent session a file, usually a folder of them.

`block_size`; `tool_tokens`, `system_tokens`; `requests[]` with `t` (s since the session began), `in`, `out` (tokens),
`model` and `hash_ids`: prefix-chained ids that mean nothing outside the session. An entry with `requests` of its own is a
sub-agent; times in it count from its `t`, its ids are the session's.

The files do not say when sessions began, nor what they had in common. The reader chooses the first by a seed, and models
the second if asked to; `assumptions` says so.
"""

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest
from kvloft.traces.files import TraceFile
from kvloft.traces.mooncake import Count, Seconds
from kvloft.traces.trace import Trace, bad_data

SUFFIXES = (".json", ".json.gz", ".json.zst")


def session_files(folder: Path) -> list[Path]:
    """The files of a folder that may be sessions, by name."""
    return sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES))


class _Asked(msgspec.Struct, rename={"input": "in", "output": "out"}):
    t: Seconds
    input: Count = 0
    output: Count = 0
    hash_ids: list[Count] | None = None
    model: str = ""
    requests: "list[_Asked] | None" = None
    tool_tokens: Count = 0
    system_tokens: Count = 0


class _Session(msgspec.Struct):
    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    requests: list[_Asked]
    tool_tokens: Count = 0
    system_tokens: Count = 0


class SessionsTrace(Trace):
    """Sessions that begin at times drawn uniformly, seeded by `seed`, over `spread` seconds.

    Only the files of sessions that run at the time are in memory.

    Args:
        path: a session file or a folder of them.
        skip_bad: leave out files that are no sessions, and count them.
        seed: of the start times.
        spread: seconds over which sessions begin; 0: all at once.
        shared_prefix: let agents of the same model with equally many tool and system tokens share the full blocks of that
            prefix, as they would in one deployment. A model, not data: the files say only how long the prefix is.
    """

    def __init__(
        self, path: Path, skip_bad: bool = False, seed: int = 0, spread: float = 4 * 3600.0, shared_prefix: bool = False
    ) -> None:
        super().__init__(path)
        self._files = session_files(path) if path.is_dir() else [path]
        if not self._files:
            raise TraceError(f"{path}: holds no file that ends in {', '.join(SUFFIXES)}")
        self.size = sum(file.stat().st_size for file in self._files)
        self._skip_bad = skip_bad
        self._seed = seed
        self._spread = spread if len(self._files) > 1 else 0.0
        self._shared_prefix = shared_prefix
        readable = (session for file in self._files if (session := self._load(file)))
        if (first := next(readable, None)) is None:
            raise TraceError(f"{path}: holds no session that can be read")
        self.block_tokens = first.block_size
        if len(self._files) > 1:
            self.assumptions.append(
                f"the {len(self._files)} sessions begin at times drawn uniformly over {spread:g} s, seed {seed}; "
                "the data do not say when they began"
            )
        if shared_prefix:
            self.assumptions.append(
                "agents of one model with equally many tool and system tokens share that prefix (modelled, not in the data)"
            )

    def __iter__(self) -> Iterator[TraceRequest]:
        self.skipped = self.position = 0
        starts = np.random.default_rng(self._seed).uniform(0, self._spread, len(self._files)).tolist()
        waiting = sorted(zip(starts, self._files, strict=True), reverse=True)
        running: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]] = []
        """The next request of each session, as a heap by its time; the number makes equal times keep their order."""
        ids = _GlobalIds(self.block_tokens, self._shared_prefix)
        while waiting or running:
            if waiting and (not running or waiting[-1][0] <= running[0][0]):
                start, file = waiting.pop()
                session = self._load(file)
                self.position += file.stat().st_size
                if session is None:
                    self.skipped += 1
                    continue
                stream = iter(ids.requests(session, start))
                order, following = len(waiting), next(stream, None)
            else:
                _, order, request, stream = heapq.heappop(running)
                yield request
                following = next(stream, None)
            if following is not None:
                heapq.heappush(running, (following.time or 0.0, order, following, stream))

    def _load(self, file: Path) -> _Session | None:
        try:
            session = msgspec.json.decode(TraceFile(file).read(), type=_Session)
            if self.block_tokens not in (0, session.block_size):
                raise ValueError(f"{session.block_size} tokens a block, but {self.block_tokens} before - at `$.block_size`")
            _check(session.requests, "requests")
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            if self._skip_bad:
                return None
            raise error if isinstance(error, TraceError) else bad_data(str(file), error, "files") from error
        return session


def _check(asked: list[_Asked], where: str) -> None:
    for at, entry in enumerate(asked):
        field = f"{where}[{at}]"
        if entry.requests is not None:
            _check(entry.requests, f"{field}.requests")
        elif entry.hash_ids is None:
            raise ValueError(f"neither a request nor a sub-agent - at `$.{field}.hash_ids`")
        if entry.hash_ids is not None and len({*entry.hash_ids}) != len(entry.hash_ids):
            raise ValueError(f"a block appears twice, but each stands for all before it - at `$.{field}.hash_ids`")


class _GlobalIds:
    """Gives the blocks of sessions ids that hold for the whole trace."""

    def __init__(self, block_tokens: int, shared_prefix: bool) -> None:
        self._block_tokens = block_tokens
        self._shared_prefix = shared_prefix
        self._free = 0
        self._shared: dict[tuple[str, int, int, int], int] = {}
        """Blocks of modelled prefixes: by model, tool tokens, system tokens, and place."""

    def requests(self, session: _Session, start: float) -> list[TraceRequest]:
        """All requests of a session that begins at `start`, in the order of time."""
        found: list[tuple[float, _Asked]] = []
        ids: dict[int, int] = {}
        self._gather(session.requests, start, session.tool_tokens, session.system_tokens, found, ids)
        found.sort(key=lambda pair: pair[0])
        requests: list[TraceRequest] = []
        for time, entry in found:
            keys = entry.hash_ids or []
            for key in keys:
                if key not in ids:
                    ids[key] = self._next()
            numbers = [ids[key] for key in keys]
            requests.append(TraceRequest(numbers, time, entry.input, entry.output, session.id))
        return requests

    def _gather(
        self,
        asked: list[_Asked],
        since: float,
        tool: int,
        system: int,
        found: list[tuple[float, _Asked]],
        ids: dict[int, int],
    ) -> None:
        """Add an agent's requests and its sub-agents' to `found`, and its modelled prefix to `ids`."""
        head = True
        for entry in asked:
            if entry.requests is not None:
                self._gather(entry.requests, since + entry.t, entry.tool_tokens, entry.system_tokens, found, ids)
            if entry.hash_ids is None:
                continue
            found.append((since + entry.t, entry))
            if head and self._shared_prefix:
                for place, key in enumerate(entry.hash_ids[: (tool + system) // self._block_tokens]):
                    name = (entry.model, tool, system, place)
                    if name not in self._shared:
                        self._shared[name] = self._next()
                    ids[key] = self._shared[name]
            head = False

    def _next(self) -> int:
        self._free += 1
        return self._free - 1
