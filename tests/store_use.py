"""A shared store in use: blocks whose content follows from their key."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvloft.tiers import JobResult, Presence, Status, Tier

BLOCK = 16384
PATIENCE = 20.0


class Use:
    """Stores, loads and looks up through a tier, and checks what comes back."""

    def __init__(self, tier: Tier, block_bytes: int = BLOCK) -> None:
        self.tier = tier
        self.block_bytes = block_bytes
        self.flavour = b""
        self._job = 0

    def keys(self, count: int, name: str = "block") -> list[bytes]:
        return [f"{name} {index}".encode() for index in range(count)]

    def content(self, key: bytes) -> bytes:
        text = self.flavour + key
        return (text * (self.block_bytes // len(text) + 1))[: self.block_bytes]

    def submit_store(self, keys: Sequence[bytes]) -> int:
        self._job += 1
        self.tier.submit_store(self._job, keys, [memoryview(self.content(key)) for key in keys])
        return self._job

    def submit_load(self, keys: Sequence[bytes]) -> tuple[int, list[memoryview]]:
        self._job += 1
        buffers = [memoryview(bytearray(self.block_bytes)) for _ in keys]
        self.tier.submit_load(self._job, keys, buffers)
        return self._job, buffers

    def answer(self, job: int) -> JobResult:
        assert self.tier.drain(PATIENCE)
        (answer,) = self.tier.poll()
        assert answer.job == job
        return answer

    def store(self, keys: Sequence[bytes]) -> list[Status]:
        return list(self.answer(self.submit_store(keys)).statuses)

    def load(self, keys: Sequence[bytes]) -> list[Status]:
        job, buffers = self.submit_load(keys)
        statuses = list(self.answer(job).statuses)
        for key, buffer, status in zip(keys, buffers, statuses, strict=True):
            assert status is not Status.OK or bytes(buffer) == self.content(key), key
        return statuses

    def look(self, keys: Sequence[bytes]) -> list[Presence]:
        end = time.monotonic() + PATIENCE
        while Presence.UNKNOWN in (found := self.tier.lookup(keys)):
            assert time.monotonic() < end, "UNKNOWN has no end"
            time.sleep(0.001)
        return found

    def until(self, true: Callable[[], bool]) -> None:
        """Until something that happens in the background has happened."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, "it never happens"
            self.tier.poll()
            time.sleep(0.005)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for loopback that signs itself, and its key."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvloft test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
