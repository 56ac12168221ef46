"""One exception tree: everything kvloft raises on purpose is a `KvloftError`."""


class KvloftError(Exception):
    """Base of all errors that kvloft raises on purpose. Its text says what was wrong, where, and what to do."""


class ConfigError(KvloftError, ValueError):
    """A setting is wrong. `problems` lists every fault found, each naming the field, the value and the fix."""

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class BlockNotReady(KvloftError, KeyError):
    """A load was asked for blocks that are not resident or not yet readable. Nothing was pinned."""

    def __str__(self) -> str:
        return str(self.args[0])


class PolicyError(KvloftError):
    """A policy broke the contract in `kvloft.policies.base`. The text names the policy and the law."""


class TraceError(KvloftError, ValueError):
    """A trace cannot be read. The text gives file, line, field and reason."""


class OutputError(KvloftError, OSError):
    """A file of results cannot be written. The text names the file and the reason."""


class TierError(KvloftError, OSError):
    """A tier cannot do what was asked of it at all (not a miss, not a failed frame: those are statuses)."""


class MissingExtra(KvloftError, ImportError):
    """An optional dependency is needed and absent. The text names the extra to install."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an optional dependency: pip install 'kvloft[{extra}]' (in a clone: '.[{extra}]')")


class UnsupportedVersion(KvloftError, ImportError):
    """An engine is installed in a version that kvloft does not know. The text names the versions that it does."""
