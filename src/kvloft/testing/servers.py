"""Real servers for tests: started on free loopback ports, ended by their own process ids.

    with RedisServer() as server:
        tier = RedisTier(server.url, namespace)
        server.pause()

Nothing is ever left running: a server also ends with the process that started it, where `setpriv` is at hand.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kvloft.errors import TierError

LOOPBACK = "127.0.0.1"
_START_SECONDS = 30.0


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One or more processes that serve on loopback. A context manager; may be paused, killed and started again.

    Raises:
        TierError: on entering, if it cannot be started; with the end of its log.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="kvloft-server-"))

    @classmethod
    def missing(cls) -> str | None:
        """What has to be installed before this server can be started; None if nothing has."""
        raise NotImplementedError

    def commands(self) -> Sequence[tuple[Sequence[str], Sequence[int]]]:
        """What to run, in order, and on which ports each then listens."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, on the same ports every time, and wait until it listens."""
        for command, ports in self.commands():
            log = self.folder / f"{len(self.processes)}.log"
            leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
            with log.open("ab") as out:
                process = subprocess.Popen([*leash, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            self.processes.append(process)
            until = time.monotonic() + _START_SECONDS
            while not all(_listens(port) for port in ports):
                if process.poll() is not None or time.monotonic() > until:
                    self.kill()
                    raise TierError(f"{command[0]} does not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.01)

    def pause(self) -> None:
        """Stop it as it is (SIGSTOP): connections stay open, nothing is answered."""
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.processes.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(Server):
    """A redis-server (or valkey-server) without persistence.

    Args:
        options: further options of its command line, such as `"--maxmemory", "8mb"`.
        cert: certificate and key file; then it speaks TLS only.
    """

    def __init__(self, *options: str, cert: tuple[Path, Path] | None = None) -> None:
        super().__init__()
        self.port = free_port()
        self.options = options
        self.cert = cert

    @property
    def url(self) -> str:
        return f"{'rediss' if self.cert else 'redis'}://{LOOPBACK}:{self.port}"

    @classmethod
    def missing(cls) -> str | None:
        if _redis() is None:
            return "redis-server (apt-get install redis-server)"
        return _module("redis", "redis")

    def commands(self) -> Sequence[tuple[Sequence[str], Sequence[int]]]:
        port = ["--port", str(self.port)]
        if self.cert is not None:
            certificate, key = map(str, self.cert)
            tls = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
            port = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", *tls]
        fixed = ["--bind", LOOPBACK, "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        return [([str(_redis()), *port, *fixed, *self.options], [self.port])]


class S3Server(Server):
    """moto's S3 server. What it holds is lost when it is killed.

    Args:
        bucket: made whenever it starts.
    """

    access_key = "kvloft-test"
    secret_key = "kvloft-test-secret"

    def __init__(self, bucket: str = "blocks") -> None:
        super().__init__()
        self.port = free_port()
        self.bucket = bucket

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @classmethod
    def missing(cls) -> str | None:
        return _module("moto", "moto[s3]") or _module("flask_cors", "flask flask-cors") or _module("obstore", "obstore")

    def commands(self) -> Sequence[tuple[Sequence[str], Sequence[int]]]:
        return [([sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)], [self.port])]

    def start(self) -> None:
        super().start()
        import obstore
        from obstore.store import HTTPStore

        # moto takes any credentials, and makes a bucket for whoever puts to its path.
        obstore.put(HTTPStore(self.endpoint, client_options={"allow_http": True}), self.bucket, b"")


class MooncakeServer(Server):
    """A mooncake_master and a store client that holds the bytes, as operators run them beside the engines.

    Args:
        segment: bytes held, as Mooncake writes sizes.
        options: further options of the master's command line.
    """

    def __init__(self, segment: str = "256 MB", *options: str) -> None:
        super().__init__()
        self.segment = segment
        self.options = options
        self.rpc, self.http, self.metrics, self.client = (free_port() for _ in range(4))

    @property
    def master(self) -> str:
        return f"{LOOPBACK}:{self.rpc}"

    @property
    def metadata(self) -> str:
        return f"http://{LOOPBACK}:{self.http}/metadata"

    @property
    def url(self) -> str:
        return f"mooncake://{self.master}"

    @classmethod
    def missing(cls) -> str | None:
        if problem := _module("mooncake", "mooncake-transfer-engine-non-cuda"):
            return problem
        try:
            importlib.import_module("mooncake.store")
        except ImportError as error:
            return f"libraries of Mooncake (apt-get install libibverbs1 librdmacm1 libnuma1): {error}"
        return None

    def commands(self) -> Sequence[tuple[Sequence[str], Sequence[int]]]:
        master = [
            f"--rpc_address={LOOPBACK}",
            f"--rpc_port={self.rpc}",
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={LOOPBACK}",
            f"--http_metadata_server_port={self.http}",
            f"--metrics_host={LOOPBACK}",
            f"--metrics_port={self.metrics}",
            *self.options,
        ]
        client = [
            f"--host={LOOPBACK}",
            f"--port={self.client}",
            f"--master_server_address={self.master}",
            f"--metadata_server={self.metadata}",
            f"--global_segment_size={self.segment}",
        ]
        return [
            ([_mooncake("mooncake_master"), *master], [self.rpc, self.http]),
            ([_mooncake("mooncake_client"), *client], [self.client]),
        ]


def required() -> bool:
    """Whether a missing server is a failure rather than a reason to skip: in CI, or with KVLOFT_NO_SKIP=1."""
    return os.environ.get("CI", "").lower() == "true" or os.environ.get("KVLOFT_NO_SKIP") == "1"


def _redis() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def _mooncake(program: str) -> str:
    spec = importlib.util.find_spec("mooncake")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    path = Path(places[0] if places else "") / program
    with contextlib.suppress(PermissionError):
        path.chmod(0o755)
    return str(path)


def _module(name: str, package: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"{package} (pip install '{package}')"


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 0.5).close()
    except OSError:
        return False
    return True
