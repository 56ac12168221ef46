"""An object store as a tier: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, a shared folder.

One object a block, `PREFIX/vN/MODEL/TENANT/DIGEST`, written whole or not at all. Object stores keep what they are given:
have them delete by age, with a lifecycle rule on the prefix.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kvloft.config import nearest
from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer, Status
from kvloft.tiers.frame import HEADER_BYTES
from kvloft.tiers.remote import Bounds, Frame, RemoteTier, Store
from kvloft.tiers.sealed import Codec
from kvloft.tiers.secret import redact, refuse_password

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")

OBJECT_BOUNDS = Bounds(connect=2.0, lookup=0.5, get=4.0, put=4.0, slowest=16e6, fresh=5.0, batch_bytes=16 << 20)
"""An object store is farther away than a cache server, and takes many requests at once better than few large ones."""
_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file", "https")
_OPTIONS = {
    "account_name",
    "authority_host",
    "base_url",
    "checksum_algorithm",
    "client_id",
    "disable_tagging",
    "endpoint",
    "region",
    "request_payer",
    "role_arn",
    "s3_express",
    "server_side_encryption",
    "skip_signature",
    "sse_bucket_key_enabled",
    "sse_kms_key_id",
    "tenant_id",
    "unsigned_payload",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
    "virtual_hosted_style_request",
}
"""Of the store, by obstore's names: those that are no secrets and change nothing that the tier relies on."""
_FULL = ("No space left on device", "QuotaExceeded", "InsufficientStorage", "Insufficient Storage", "Disk quota exceeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAccess:
    """Where a bucket is. Safe to print: credentials come from the provider's own chain (environment, profile, instance or
    workload identity) and are never settings.

    Args:
        url: "s3://bucket/folder", "gs://bucket/folder", "az://account/container/folder", "file:///folder".
        options: of the store, by obstore's names: `region`, `endpoint`, `virtual_hosted_style_request`, ...
        profile: of AWS's configuration files (SSO and such, by way of boto3), if it is not to be the usual chain.
        allow_http: take an endpoint without TLS.

    Raises:
        ConfigError: the URL is none of these, or it or an option holds a secret.
    """

    url: str
    options: Mapping[str, str | bool] = field(default_factory=dict)
    profile: str | None = None
    allow_http: bool = False

    def __post_init__(self) -> None:
        refuse_password(self.url, "url")
        problems = []
        if urlsplit(self.url).scheme not in _SCHEMES:
            problems.append(
                f'url: {self.url!r} is no address of an object store; write "s3://bucket/folder", "gs://...", "az://...", '
                'or "file:///folder"'
            )
        for name in self.options:
            if name not in _OPTIONS:
                close = nearest(name, _OPTIONS)
                problems.append(
                    f"options.{name}: is none of {', '.join(sorted(_OPTIONS))}"
                    + (
                        f"; did you mean {close}?"
                        if close
                        else "; credentials are no settings: see the provider's own chain"
                    )
                )
        if problems:
            raise ConfigError(problems)


class ObjectBlocks(Store):
    """Blocks in an object store. Many requests at once, each bounded in time.

    Args:
        access: where it is.
        bounds: times for connections and requests.
        concurrency: most requests at once, for each thread.

    Raises:
        MissingExtra: obstore is not installed.
        ConfigError: obstore does not take the address or an option.
    """

    def __init__(self, access: ObjectAccess, bounds: Bounds, concurrency: int = 32) -> None:
        try:
            import obstore
        except ImportError as error:
            raise MissingExtra("s3", "an object store tier") from error
        self._obs = obstore
        self._concurrency = concurrency
        self._local = threading.local()
        self._runners: list[asyncio.Runner] = []
        self._lock = threading.Lock()
        self._put_seconds = bounds.put
        self._get_seconds = bounds.get
        self._head_seconds = max(bounds.lookup, bounds.connect)
        self._store = _open(access, bounds)

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        async def head(name: str) -> bool:
            try:
                await self._obs.head_async(self._store, name)
            except FileNotFoundError:
                return False
            return True

        return self._all(head, names, self._head_seconds)

    def put(self, names: Sequence[str], frames: Sequence[Frame]) -> Sequence[Status]:
        async def put(item: tuple[str, Frame]) -> Status:
            name, (header, payload) = item
            try:
                await self._obs.put_async(self._store, name, [header, payload], use_multipart=False)
            except Exception as error:
                if any(sign in str(error) for sign in _FULL):
                    return Status.DROPPED
                raise
            return Status.OK

        return self._all(put, list(zip(names, frames, strict=True)), self._put_seconds)

    def get(self, names: Sequence[str], buffers: Sequence[Buffer]) -> Sequence[Frame | None]:
        async def get(item: tuple[str, Buffer]) -> Frame | None:
            name, buffer = item
            try:
                found = await self._obs.get_async(self._store, name)
            except FileNotFoundError:
                return None
            if found.meta["size"] > HEADER_BYTES + buffer.nbytes:
                # Not ours, however it got there: not worth reading, and refused when it is checked.
                return b"", memoryview(b"")
            whole = memoryview(await found.bytes_async())
            return whole[:HEADER_BYTES], whole[HEADER_BYTES:]

        return self._all(get, list(zip(names, buffers, strict=True)), self._get_seconds)

    def touch(self, names: Sequence[str]) -> None:
        """Nothing: object stores know when an object was written, not when it was read."""

    def remove(self, names: Sequence[str]) -> None:
        async def delete(name: str) -> None:
            try:
                await self._obs.delete_async(self._store, name)
            except FileNotFoundError:
                return

        self._all(delete, names, self._put_seconds)

    def close(self) -> None:
        with self._lock:
            for runner in self._runners:
                runner.close()
            self._runners.clear()

    def _all(self, act: Callable[[Any], Awaitable[_T]], items: Sequence[Any], seconds: float) -> list[_T]:
        """Act on all items, `concurrency` at once, within `seconds`. The first error ends it, and is raised."""

        async def run() -> list[_T]:
            gate = asyncio.Semaphore(self._concurrency)

            async def one(item: Any) -> _T:
                async with gate:
                    return await act(item)

            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
            return [task.result() for task in tasks]

        try:
            return self._runner().run(run())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        except TimeoutError as error:
            raise TimeoutError(f"no answer in {seconds:.3g} s") from error

    def _runner(self) -> asyncio.Runner:
        """This thread's event loop."""
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        if runner is None:
            runner = self._local.runner = asyncio.Runner()
            with self._lock:
                self._runners.append(runner)
        return runner


class ObjectTier(RemoteTier):
    """Blocks in an object store, shared by all who use the same bucket, prefix and namespace.

    Args:
        access: where it is.
        block_bytes: of each block.
        namespace: of the blocks.
        name: what stats and metrics call it.
        bounds: times and sizes.
        codec: how blocks are changed before they are stored.
        concurrency: most requests at once, for each thread.
        prefix: what all names begin with, below the folder of the URL.

    Raises:
        MissingExtra: obstore is not installed.
        ConfigError: obstore does not take the address or an option.
    """

    def __init__(
        self,
        access: ObjectAccess,
        block_bytes: int,
        namespace: Namespace,
        *,
        name: str = "objects",
        bounds: Bounds | None = None,
        codec: Codec | None = None,
        concurrency: int = 32,
        prefix: str = "kvloft",
    ) -> None:
        bounds = bounds or OBJECT_BOUNDS
        store = ObjectBlocks(access, bounds, concurrency)
        super().__init__(store, block_bytes, namespace, name=name, bounds=bounds, codec=codec, prefix=prefix)


def _open(access: ObjectAccess, bounds: Bounds) -> "ObjectStore":
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if access.url.startswith("file://"):
        folder = Path(urlsplit(access.url).path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder)
    client: Any = {
        "connect_timeout": timedelta(seconds=bounds.connect),
        "timeout": timedelta(seconds=max(bounds.get, bounds.put)),
        "allow_http": access.allow_http,
    }
    settings: dict[str, Any] = {
        "client_options": client,
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=max(bounds.get, bounds.put))},
        **access.options,
    }
    if access.profile is not None:
        settings["credential_provider"] = _profile(access.profile)
    try:
        store: ObjectStore = from_url(access.url, **settings)
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(f"url: {access.url!r}: {redact(error)}") from error
    return store


def _profile(profile: str) -> Any:
    try:
        from boto3 import Session  # type: ignore[import-untyped,unused-ignore]
        from botocore.exceptions import ProfileNotFound  # type: ignore[import-untyped,unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtra("s3", "an AWS profile") from error
    try:
        return Boto3CredentialProvider(Session(profile_name=profile))
    except (ProfileNotFound, ValueError) as error:
        raise ConfigError(f"profile: {profile!r}: {redact(error)}") from error
