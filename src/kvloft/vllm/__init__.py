"""Names for vLLM's configuration: `cache_policy_module_path`, `spec_module_path` and `module_path` are all "kvloft.vllm".

Importing this package imports neither vLLM nor torch; asking it for one of its names does.
"""

from importlib import import_module

_MODULES = {
    "DiskTier": "kvloft.vllm.tier",
    "KvloftManager": "kvloft.vllm.manager",
    "KvloftSpec": "kvloft.vllm.spec",
    "TieredManager": "kvloft.vllm.tiered",
}


def __getattr__(name: str) -> object:
    """A name of the table, or a policy for vLLM's stock manager (see `kvloft.vllm.policy.find_cache_policy`).

    Raises:
        MissingExtra, UnsupportedVersion: there is no vLLM that we can run with.
        AttributeError: there is no such name; raised as such because vLLM asks with `getattr`.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("kvloft.vllm.compat")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    return import_module("kvloft.vllm.policy").find_cache_policy(name)
