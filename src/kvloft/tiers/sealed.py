"""What becomes of a block before it is framed: nothing, compression, encryption.

At rest a changed block is: format (1 byte), flags (1: compressed, 2: shuffled, 4: encrypted), zero (2), bytes of the block
(8); if encrypted, salt (16) and nonce (12); the bytes; if encrypted, their tag (16). All numbers are little-endian. What is
checked when is told in docs/decisions/0004-shared-stores.md.
"""

import hashlib
import itertools
import os
import struct
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import zstandard

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import DIGEST_BYTES, Namespace
from kvloft.tiers.base import Buffer
from kvloft.tiers.buffers import as_array
from kvloft.tiers.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_FORMAT = 1
_HEAD = struct.Struct("<BBHQ")
_COMPRESSED, _SHUFFLED, _ENCRYPTED = 1, 2, 4
_SALT_BYTES = 16
_NONCE_BYTES = 12
_TAG_BYTES = 16
_LONGEST = (1 << 36) - 32
"""Bytes that AES-GCM takes under one nonce."""
_SHORTEST_SECRET = 16
_WRITERS = 4096
"""Keys of other writers remembered."""


class Codec(Protocol):
    """Turns blocks into what is at rest, and back. Safe to use from several threads at once."""

    label: str
    """Part of the names of all blocks, hex digits; empty for none. Blocks that this codec cannot read have another."""

    def rename(self, digest: bytes) -> bytes:
        """The digest by which a block is known at rest."""

    def encode(self, digest: bytes, block: Buffer) -> Buffer:
        """What is to be at rest: the block itself, or new bytes. `digest` is the block's renamed one, here and below."""

    def longest(self, nbytes: int) -> int:
        """Bytes at rest, at most, of a block of `nbytes`."""

    def sink(self, block: Buffer) -> Buffer:
        """Where to read what is at rest: the block's own buffer, or a new one of the longest length."""

    def decode(self, digest: bytes, stored: Buffer, block: Buffer) -> bool:
        """Turn what was at rest into the block; False if it is not this block."""


class Plain(Codec):
    """At rest as it is."""

    label = ""

    def rename(self, digest: bytes) -> bytes:
        return digest

    def encode(self, digest: bytes, block: Buffer) -> Buffer:
        return block

    def longest(self, nbytes: int) -> int:
        return nbytes

    def sink(self, block: Buffer) -> Buffer:
        return block

    def decode(self, digest: bytes, stored: Buffer, block: Buffer) -> bool:
        if stored.nbytes != block.nbytes:
            return False
        if stored is not block:
            np.copyto(np.frombuffer(block, np.uint8), np.frombuffer(stored, np.uint8))
        return True


class Sealed(Codec):
    """Compressed, encrypted, or both, in this order.

    Encryption is AES-256-GCM. The key is derived (HKDF-SHA256) from the secret, the namespace with its tenant, and a salt
    drawn at random by each writing process, so no two writers share one; the nonce counts that writer's blocks, so it is
    never used twice. Authenticated with the bytes are the header, the namespace and the block's name. Names are derived from
    the secret too: who does not know it cannot tell which block an object is.

    Args:
        namespace: of the blocks.
        secret: where the secret lies; None for no encryption. Read once. Another secret is another set of blocks.
        compression: level of zstd; None for no compression. With 16-bit values, their halves are parted first.

    Raises:
        ConfigError: there is neither secret nor compression, the secret cannot be read or is too short, or there is no such
            level.
        MissingExtra: encryption is asked for, and `cryptography` is not installed.
    """

    def __init__(self, namespace: Namespace, *, secret: Secret | None = None, compression: int | None = None) -> None:
        if secret is None and compression is None:
            raise ConfigError("sealed: give a secret, a compression level, or both")
        if compression is not None and not 1 <= compression <= zstandard.MAX_COMPRESSION_LEVEL:
            raise ConfigError(
                f"compression: {compression!r} is no level of zstd; give 1 to {zstandard.MAX_COMPRESSION_LEVEL}"
            )
        self._fingerprint = namespace.fingerprint
        self._level = compression
        self._wide = "16" in namespace.dtype
        self._of_thread = threading.local()
        self._cipher = None if secret is None else _Cipher(secret, namespace.fingerprint)
        self.label = self._cipher.label if self._cipher else "c0"

    def rename(self, digest: bytes) -> bytes:
        return digest if self._cipher is None else self._cipher.rename(digest)

    def longest(self, nbytes: int) -> int:
        return _HEAD.size + nbytes + (_SALT_BYTES + _NONCE_BYTES + _TAG_BYTES if self._cipher else 0)

    def sink(self, block: Buffer) -> Buffer:
        return np.empty(self.longest(block.nbytes), np.uint8).data

    def encode(self, digest: bytes, block: Buffer) -> Buffer:
        data: npt.NDArray[np.uint8] = as_array(block)
        flags = 0
        if self._level is not None:
            shuffled = self._wide and data.size % 2 == 0
            packed = as_array(self._compressor().compress((_part(data) if shuffled else data).data))
            if packed.size < data.size:
                data, flags = packed, _COMPRESSED | (_SHUFFLED if shuffled else 0)
        if self._cipher is None:
            return np.concatenate([as_array(_HEAD.pack(_FORMAT, flags, 0, block.nbytes)), data]).data
        return self._cipher.encrypt(_HEAD.pack(_FORMAT, flags | _ENCRYPTED, 0, block.nbytes), self._name(digest), data)

    def decode(self, digest: bytes, stored: Buffer, block: Buffer) -> bool:
        if stored.nbytes < _HEAD.size:
            return False
        head = bytes(stored[: _HEAD.size])
        form, flags, zero, nbytes = _HEAD.unpack(head)
        if form != _FORMAT or zero or flags > 7 or nbytes != block.nbytes or bool(flags & _ENCRYPTED) != bool(self._cipher):
            return False
        rest = stored[_HEAD.size :]
        if self._cipher is not None:
            into = None if flags & _COMPRESSED else as_array(block)
            opened = self._cipher.decrypt(head, self._name(digest), rest, into)
            if opened is None:
                return False
            rest = opened.data
        elif not flags & _COMPRESSED:
            return Plain().decode(digest, rest, block)
        return not flags & _COMPRESSED or _expand(rest, block, bool(flags & _SHUFFLED))

    def _name(self, digest: bytes) -> bytes:
        return self._fingerprint + digest

    def _compressor(self) -> zstandard.ZstdCompressor:
        """This thread's own, for none may be used by two at once."""
        compressor: zstandard.ZstdCompressor | None = getattr(self._of_thread, "compressor", None)
        if compressor is None:
            assert self._level is not None
            compressor = self._of_thread.compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True)
        return compressor


class _Cipher:
    """Keys from one secret, in one namespace."""

    def __init__(self, secret: Secret, fingerprint: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise MissingExtra("encryption", "encryption of blocks") from error
        material = secret.read()
        if len(material) < _SHORTEST_SECRET:
            raise ConfigError(
                f"{secret.setting}: {secret.reference} holds {len(material)} bytes; give at least {_SHORTEST_SECRET}, "
                "such as `openssl rand -hex 32` prints"
            )
        self._invalid = InvalidTag
        self._material = material
        self._fingerprint = fingerprint
        name_key = self._derive(b"name", b"")
        self.label = hashlib.blake2b(b"label", key=name_key, digest_size=8).hexdigest()
        self._namer = hashlib.blake2b(digest_size=DIGEST_BYTES, key=name_key)
        self._key_of = lru_cache(_WRITERS)(lambda salt: AESGCM(self._derive(b"block", salt)))
        self._lock = threading.Lock()
        self._writer: tuple[int, bytes, AESGCM, Iterator[int]] | None = None
        """Process, salt, key, nonces."""

    def rename(self, digest: bytes) -> bytes:
        namer = self._namer.copy()
        namer.update(digest)
        return namer.digest()

    def encrypt(self, head: bytes, name: bytes, data: npt.NDArray[np.uint8]) -> Buffer:
        salt, key, count = self._next()
        nonce = count.to_bytes(_NONCE_BYTES, "little")
        lead = head + salt + nonce
        sealed = np.empty(len(lead) + data.size + _TAG_BYTES, np.uint8)
        sealed[: len(lead)] = as_array(lead)
        key.encrypt_into(nonce, data.data, lead + name, sealed[len(lead) :].data)
        return sealed.data

    def decrypt(
        self, head: bytes, name: bytes, sealed: Buffer, into: npt.NDArray[np.uint8] | None
    ) -> npt.NDArray[np.uint8] | None:
        """The bytes, in `into` if it is given; None if they are not what was written under this name by who knows the
        secret."""
        size = sealed.nbytes - _SALT_BYTES - _NONCE_BYTES - _TAG_BYTES
        if size < 0 or (into is not None and into.size != size) or size > _LONGEST:
            return None
        salt, nonce = bytes(sealed[:_SALT_BYTES]), bytes(sealed[_SALT_BYTES:][:_NONCE_BYTES])
        opened = np.empty(size, np.uint8) if into is None else into
        try:
            self._key_of(salt).decrypt_into(
                nonce, sealed[_SALT_BYTES + _NONCE_BYTES :], head + salt + nonce + name, opened.data
            )
        except self._invalid:
            return None
        return opened

    def _next(self) -> "tuple[bytes, AESGCM, int]":
        """Salt, key and an unused nonce. A fork is another writer: it must not go on counting where its parent did."""
        with self._lock:
            if self._writer is None or self._writer[0] != os.getpid():
                salt = os.urandom(_SALT_BYTES)
                self._writer = os.getpid(), salt, self._key_of(salt), itertools.count()
            _, salt, key, nonces = self._writer
            return salt, key, next(nonces)

    def _derive(self, purpose: bytes, salt: bytes) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = b"kvloft seal 1 " + purpose + b" " + self._fingerprint
        return HKDF(algorithm=SHA256(), length=32, salt=salt or None, info=info).derive(self._material)


def _part(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Lower bytes of 16-bit values first, then all upper ones: signs and exponents repeat, mantissas do not."""
    return np.ascontiguousarray(data.reshape(-1, 2).T)


def _expand(packed: Buffer, block: Buffer, shuffled: bool) -> bool:
    """Decompress into the block; False if it was not made from one of this length."""
    try:
        if zstandard.frame_content_size(packed) != block.nbytes:
            return False
        data = as_array(zstandard.ZstdDecompressor().decompress(packed))
    except zstandard.ZstdError:
        return False
    whole: npt.NDArray[np.uint8] = as_array(block)
    if shuffled:
        np.copyto(whole.reshape(-1, 2), data.reshape(2, -1).T)
    else:
        np.copyto(whole, data)
    return True
