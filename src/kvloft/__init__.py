"""kvloft keeps the KV cache of LLM serving alive beyond GPU memory."""

from kvloft.errors import KvloftError
from kvloft.policies import Policy, make_policy, policy_names
from kvloft.pool import BlockPool, LoadPlan, Lookup, StorePlan
from kvloft.request import Key, Request
from kvloft.telemetry import Counters, Event, EventKind, Stats

__version__ = "0.1.0"

__all__ = [
    "BlockPool",
    "Counters",
    "Event",
    "EventKind",
    "Key",
    "KvloftError",
    "LoadPlan",
    "Lookup",
    "Policy",
    "Request",
    "Stats",
    "StorePlan",
    "make_policy",
    "policy_names",
]
