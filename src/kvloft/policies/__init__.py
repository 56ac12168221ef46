"""Which block leaves. One policy a file; `make_policy` finds them by name, those of installed plug-ins included."""

from collections.abc import Callable

from kvloft.errors import ConfigError
from kvloft.plugins import POLICIES, load_plugin, plugin_names
from kvloft.policies.arc import ARC, ARCvLLM
from kvloft.policies.base import Offer, Policy
from kvloft.policies.chained import Chained
from kvloft.policies.fifo import FIFO
from kvloft.policies.gdsf import GDSF
from kvloft.policies.hdi import HDI
from kvloft.policies.lfu import LFU
from kvloft.policies.lirs import LIRS
from kvloft.policies.lru import LRU
from kvloft.policies.lru_k import LRU2
from kvloft.policies.s3fifo import S3FIFO
from kvloft.policies.sieve import SIEVE
from kvloft.policies.slru import SLRU
from kvloft.policies.twoq import TwoQ
from kvloft.policies.wtinylfu import WTinyLFU

__all__ = ["ARC", "BUILTIN", "LRU", "ARCvLLM", "Offer", "Policy", "is_policy", "load_policy", "make_policy", "policy_names"]

BUILTIN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (LRU, ARC, ARCvLLM, FIFO, LFU, LRU2, TwoQ, SLRU, S3FIFO, SIEVE, LIRS, WTinyLFU, GDSF, HDI)
}
DEFAULT = "hdi"
CHAINS = "+chains"


def policy_names() -> list[str]:
    """Names that `make_policy` knows: built in, then from the `kvloft.policies` entry points of installed packages."""
    return [*BUILTIN, *(name for name in plugin_names(POLICIES) if name not in BUILTIN)]


def is_policy(name: object) -> bool:
    """Whether `make_policy` knows this name: one of `policy_names`, "default", or either with `+chains` behind it."""
    plain = name.removesuffix(CHAINS) if isinstance(name, str) else None
    return plain == "default" or plain in policy_names()


def make_policy(policy: str | type[Policy] | Policy, capacity: int) -> Policy:
    """A policy for `capacity` blocks, from a name ("default" for the default policy), a class, or itself if it is one.

    A name with `+chains` behind it is that policy in ancestor-closed mode, see `Chained`.

    Raises:
        ConfigError: no policy has that name, or the plug-in that offers it is broken.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        return policy(capacity)
    return load_policy(policy)(capacity)


def load_policy(name: str) -> Callable[[int], Policy]:
    """What makes a policy of this name for a capacity in blocks.

    Raises:
        ConfigError: no policy has that name, or the plug-in that offers it is broken.
    """
    if name.endswith(CHAINS) and not name.endswith(2 * CHAINS):
        inner = load_policy(name.removesuffix(CHAINS))
        return lambda capacity: Chained(inner(capacity))
    plain = DEFAULT if name == "default" else name
    if plain in BUILTIN:
        return BUILTIN[plain]
    try:
        plugin = load_plugin(POLICIES, plain)
    except ConfigError as error:
        raise ConfigError(f"policy {error}") from error
    if plugin is None:
        raise ConfigError(f"policy {name!r} is unknown; choose one of: {', '.join(policy_names())}")
    if not isinstance(plugin.offer, type) or not issubclass(plugin.offer, Policy):
        raise ConfigError(f"policy {plain!r}: {plugin.source} offers {plugin.offer!r}, which is no class of kvloft's Policy")
    return plugin.offer
