"""Generated workloads: chat, agents, RAG and scans, for several tenants, from one seed.

Defaults are statistics of public traces, as far as those have them:

- From Mooncake's `conversation_trace` (12,031 requests): prompts of first turns are log-normal with a median of 5,264 tokens
  (sigma 1.26), later turns add 497 (sigma 1.47), answers have 350 (sigma 1.1), turns follow after 123 s (sigma 0.98), 3.4
  requests arrive a second, and after turn t a conversation goes on with probability t / (t + 2.5) (a Yule distribution).
- From kv-cache-tester's `claude_code` traces (63 sessions): 12,000 tokens of tools and 2,800 of system prompt, first prompts
  with a median of 65,000 tokens (sigma 1.05), later ones add 800 (sigma 1.1) after 19 s (sigma 1.1), answers have 245 (sigma
  0.86), a session has 16 requests (sigma 0.95), 0.5 % of requests start a sub-agent, which makes 11 requests from 11,800
  tokens on (sigma 0.06).

RAG, scans, tenants and system prompts of chats are not in these traces; their defaults are choices, marked so below.
"""

import heapq
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from kvloft.errors import ConfigError
from kvloft.files import write_whole
from kvloft.traces.event import TraceRequest
from kvloft.traces.native import MADE, Header, native_line


class LogNormal(msgspec.Struct, frozen=True):
    """A positive quantity by its median and the standard deviation of its logarithm."""

    median: float
    sigma: float

    def draw(self, rng: np.random.Generator) -> float:
        return self.median * float(np.exp(self.sigma * rng.standard_normal()))


class Chat(msgspec.Struct, frozen=True):
    """Conversations in turns. Lengths in tokens, times in seconds.

    Args:
        prompts: system prompts of a tenant (choice); conversations pick one, the n-th with weight 1/n.
        prompt: length of each of them (choice).
        first: what the user says first.
        turn: what each later turn adds beside the answer.
        answer: length of answers.
        pause: between an answer and the next turn.
        ending: the greater, the sooner conversations end: after turn t they go on with probability t / (t + ending).
    """

    prompts: int = 8
    prompt: LogNormal = LogNormal(1200, 0.6)
    first: LogNormal = LogNormal(5264, 1.26)
    turn: LogNormal = LogNormal(497, 1.47)
    answer: LogNormal = LogNormal(350, 1.1)
    pause: LogNormal = LogNormal(123, 0.98)
    ending: float = 2.5


class Agents(msgspec.Struct, frozen=True):
    """Agents that call tools, and sub-agents. Lengths in tokens, times in seconds.

    Args:
        kinds: sets of tools and system prompts of a tenant (choice); the n-th is picked with weight 1/n.
        tools: length of the tools' descriptions and the system prompt.
        first: the first prompt, beside that.
        result: what a tool's result adds beside the answer.
        answer: length of answers.
        pause: until the tool's result.
        requests: of an agent.
        helpers: share of requests that start a sub-agent.
        helper_first: the first prompt of a sub-agent, tools included.
        helper_requests: of a sub-agent.
    """

    kinds: int = 4
    tools: LogNormal = LogNormal(14_800, 0.13)
    first: LogNormal = LogNormal(50_000, 1.05)
    result: LogNormal = LogNormal(800, 1.1)
    answer: LogNormal = LogNormal(245, 0.86)
    pause: LogNormal = LogNormal(19, 1.1)
    requests: LogNormal = LogNormal(16, 0.95)
    helpers: float = 0.005
    helper_first: LogNormal = LogNormal(11_800, 0.06)
    helper_requests: LogNormal = LogNormal(11, 0.5)


class Rag(msgspec.Struct, frozen=True):
    """Questions about retrieved documents: a system prompt, documents, a question, one answer. All choices.

    Args:
        documents: of a tenant; the n-th is retrieved with weight 1/n.
        prompt: length of the system prompt, in tokens.
        document: length of a document.
        retrieved: documents a question.
        question: its length.
        answer: length of answers.
    """

    documents: int = 2000
    prompt: LogNormal = LogNormal(800, 0.1)
    document: LogNormal = LogNormal(1500, 0.7)
    retrieved: int = 4
    question: LogNormal = LogNormal(60, 0.8)
    answer: LogNormal = LogNormal(300, 0.8)


class Scan(msgspec.Struct, frozen=True):
    """Batch jobs: many long prompts in a row that never come again. All choices.

    Args:
        requests: of a job.
        prompt: length of a prompt, in tokens.
        answer: length of answers.
        pause: seconds between two prompts.
    """

    requests: LogNormal = LogNormal(50, 0.5)
    prompt: LogNormal = LogNormal(20_000, 0.5)
    answer: LogNormal = LogNormal(100, 0.5)
    pause: LogNormal = LogNormal(1, 0.3)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What to generate.

    Args:
        requests: how many.
        seed: equal seeds give equal traces.
        block_tokens: tokens a block; only full blocks are in the trace.
        sessions_a_second: conversations, agents, questions and jobs that begin, of all kinds and tenants together.
        tenants: they share no block; the n-th begins a session with weight 1/n.
        mix: weights of the kinds: "chat", "agents", "rag", "scan".
        chat: parameters of conversations.
        agents: parameters of agents.
        rag: parameters of questions about documents.
        scan: parameters of batch jobs.
    """

    requests: int = 10_000
    seed: int = 0
    block_tokens: int = 16
    sessions_a_second: float = 2.0
    tenants: int = 1
    mix: dict[str, float] = msgspec.field(default_factory=lambda: {"chat": 1.0})
    chat: Chat = Chat()
    agents: Agents = Agents()
    rag: Rag = Rag()
    scan: Scan = Scan()

    def check(self) -> None:
        """Raises:
        ConfigError: names all that is wrong.
        """
        problems = [
            f"{name}: {getattr(self, name)!r} is not positive"
            for name in ("requests", "block_tokens", "sessions_a_second", "tenants")
            if not getattr(self, name) > 0
        ]
        for kind, weight in self.mix.items():
            if kind not in _KINDS:
                problems.append(f"mix: {kind!r} is unknown; choose from {', '.join(_KINDS)}")
            elif not weight >= 0:
                problems.append(f"mix: {weight!r} of {kind} is negative")
        if not sum(self.mix.values()) > 0:
            problems.append("mix: no kind has a weight above 0")
        if problems:
            raise ConfigError(problems)


@dataclass
class _Text:
    """What a prompt consists of so far: the blocks that are full, and how many tokens are there."""

    blocks: list[int] = field(default_factory=list)
    tokens: int = 0


@dataclass
class _World:
    """What sessions share: the tenants' texts, and the next free block id."""

    workload: Workload
    free: int = 0
    texts: dict[tuple[str, str, int], _Text] = field(default_factory=dict)

    def extend(self, text: _Text, tokens: float) -> _Text:
        """The text and so many new tokens (at least one), which nobody else has."""
        total = text.tokens + max(1, round(tokens))
        new = total // self.workload.block_tokens - len(text.blocks)
        blocks = [*text.blocks, *range(self.free, self.free + new)]
        self.free += new
        return _Text(blocks, total)

    def shared(self, tenant: str, what: str, which: int, length: LogNormal, after: _Text | None = None) -> _Text:
        """A text that all of a tenant share, made when it is first asked for. Its length depends on what comes before a "/"
        in its name, and on `which`."""
        name = (tenant, what, which)
        if name not in self.texts:
            kind = zlib.crc32(f"{tenant} {what.partition('/')[0]}".encode())
            rng = np.random.default_rng([self.workload.seed, 1, kind, which])
            self.texts[name] = self.extend(after or _Text(), length.draw(rng))
        return self.texts[name]


_Session = Iterator[tuple[float, _Text, int, bool]]
"""Seconds since the one before, the prompt, tokens of the answer, whether it is the last request."""


def _ranked(rng: np.random.Generator, n: int) -> int:
    """0 .. n-1, the n-th with weight 1/n."""
    weights = 1 / np.arange(1, n + 1)
    return int(rng.choice(n, p=weights / weights.sum()))


def _chat(world: _World, tenant: str, rng: np.random.Generator) -> _Session:
    kind = world.workload.chat
    text = world.shared(tenant, "chat", _ranked(rng, kind.prompts), kind.prompt)
    more, pause, turn, last = kind.first, 0.0, 0, False
    while not last:
        turn += 1
        text = world.extend(text, more.draw(rng))
        answer = max(1, round(kind.answer.draw(rng)))
        last = rng.random() >= turn / (turn + kind.ending)
        yield pause, text, answer, last
        text = world.extend(text, answer)
        more, pause = kind.turn, kind.pause.draw(rng)


def _agents(world: _World, tenant: str, rng: np.random.Generator) -> _Session:
    kind = world.workload.agents
    tools = world.shared(tenant, "agents", _ranked(rng, kind.kinds), kind.tools)
    text = world.extend(tools, kind.first.draw(rng))
    requests = max(1, round(kind.requests.draw(rng)))
    pause = 0.0
    for at in range(1, requests + 1):
        answer = max(1, round(kind.answer.draw(rng)))
        yield pause, text, answer, at == requests
        pause = kind.pause.draw(rng)
        if at < requests and rng.random() < kind.helpers:
            helper = world.extend(_Text(), kind.helper_first.draw(rng))
            for _ in range(max(1, round(kind.helper_requests.draw(rng)))):
                said = max(1, round(kind.answer.draw(rng)))
                yield pause, helper, said, False
                helper = world.extend(helper, said + kind.result.draw(rng))
                pause = kind.pause.draw(rng)
        text = world.extend(text, answer + kind.result.draw(rng))


def _rag(world: _World, tenant: str, rng: np.random.Generator) -> _Session:
    kind = world.workload.rag
    text = world.shared(tenant, "rag", 0, kind.prompt)
    path = "rag"
    for which in dict.fromkeys(_ranked(rng, kind.documents) for _ in range(kind.retrieved)):
        path = f"{path}/{which}"
        text = world.shared(tenant, path, which, kind.document, text)
    yield 0.0, world.extend(text, kind.question.draw(rng)), max(1, round(kind.answer.draw(rng))), True


def _scan(world: _World, tenant: str, rng: np.random.Generator) -> _Session:
    kind = world.workload.scan
    requests = max(1, round(kind.requests.draw(rng)))
    for at in range(requests):
        pause = kind.pause.draw(rng) if at else 0.0
        answer = max(1, round(kind.answer.draw(rng)))
        yield pause, world.extend(_Text(), kind.prompt.draw(rng)), answer, at + 1 == requests


_KINDS: dict[str, Callable[[_World, str, np.random.Generator], _Session]] = {
    "chat": _chat,
    "agents": _agents,
    "rag": _rag,
    "scan": _scan,
}


def synthesize(workload: Workload) -> Iterator[TraceRequest]:
    """The requests, in the order of time. Memory grows with the sessions that run at a time.

    Raises:
        ConfigError: the workload makes no sense; names all that is wrong.
    """
    workload.check()
    world = _World(workload)
    arrivals = np.random.default_rng([workload.seed, 0])
    kinds = [kind for kind, weight in workload.mix.items() if weight]
    weights = np.array([workload.mix[kind] for kind in kinds])
    running: list[tuple[float, int, _Text, int, bool, str, _Session]] = []
    begun, next_start = 0, 0.0
    for _ in range(workload.requests):
        while not running or next_start <= running[0][0]:
            kind = kinds[int(arrivals.choice(len(kinds), p=weights / weights.sum()))]
            tenant = f"tenant-{_ranked(arrivals, workload.tenants)}" if workload.tenants > 1 else ""
            session = _KINDS[kind](world, tenant, np.random.default_rng([workload.seed, 2, begun]))
            _, text, answer, last = next(session)
            heapq.heappush(running, (next_start, begun, text, answer, last, tenant, session))
            begun += 1
            next_start += float(arrivals.exponential(1 / workload.sessions_a_second))
        now, number, text, answer, last, tenant, session = heapq.heappop(running)
        yield TraceRequest(text.blocks, round(now, 3), text.tokens, answer, str(number), tenant, last)
        if not last:
            pause, text, answer, last = next(session)
            heapq.heappush(running, (now + pause, number, text, answer, last, tenant, session))


def parse_mix(text: str) -> dict[str, float]:
    """From "chat=0.6,rag=0.4".

    Raises:
        ConfigError: it is not of that form.
    """
    mix: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = part.strip().partition("=")
        try:
            mix[kind] = float(weight) if weight else 1.0
        except ValueError as error:
            raise ConfigError(f"mix: {part!r} is not of the form chat=0.6") from error
    return mix


def read_workload(path: Path) -> Workload:
    """From a JSON file with fields as `Workload` has them.

    Raises:
        ConfigError: it cannot be read, or a field is wrong.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Workload)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def write_trace(
    path: Path, workload: Workload, requests: Iterator[TraceRequest], tell: Callable[[int, int], None]
) -> tuple[int, int]:
    """Write requests in kvloft's own format, whole or not at all; `tell` hears how far it is.

    Returns:
        How many requests and block accesses there are.

    Raises:
        OutputError: the file cannot be written.
    """
    count = blocks = 0
    with write_whole(path) as stream:
        header = Header(block_tokens=workload.block_tokens, source=MADE, facts={"seed": workload.seed})
        stream.write(msgspec.json.encode(header) + b"\n")
        for request in requests:
            stream.write(native_line(request))
            count += 1
            blocks += len(request.keys)
            if not count % 100:
                tell(count, workload.requests)
    return count, blocks
