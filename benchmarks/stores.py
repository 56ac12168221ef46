"""Shared stores through kvloft's tiers, beside what the same server gives to its bare client.

    python benchmarks/stores.py [--short] [--only redis,objects,mooncake,packing,sealing]

Every figure is the best of several rounds, in which the things compared take turns; ratios are to the bare client. CPU
seconds are of this process, for each gigabyte written and read; they depend less on what else the machine does than rates.
All servers are started here, on loopback: S3 is moto's, which is made for tests, so its times say nothing of a real one.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from kvloft.keys import Namespace
from kvloft.testing.servers import MooncakeServer, RedisServer, S3Server
from kvloft.tiers import Presence, Status
from kvloft.tiers.bandwidth import load_all, make_buffers, store_all

MIB = 1 << 20
TURNS = 5


class Pass(NamedTuple):
    """One pass of writing and reading: bytes a second of both, and CPU seconds a gigabyte of both."""

    write: float
    read: float
    cpu: float


def compare(title: str, ways: dict[str, Callable[[], Pass]], turns: int) -> None:
    """The first way is what the others are compared with."""
    seen: dict[str, list[Pass]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            seen[name].append(way())
    print(title)
    best = {
        name: Pass(max(p.write for p in all_), max(p.read for p in all_), min(p.cpu for p in all_))
        for name, all_ in seen.items()
    }
    first = next(iter(best.values()))
    for name, way in best.items():
        print(
            f"  {name:40s} write {way.write / 1e9:5.2f} GB/s (x{way.write / first.write:.2f})  "
            f"read {way.read / 1e9:5.2f} GB/s (x{way.read / first.read:.2f})  "
            f"CPU {way.cpu:5.2f} s/GB (x{way.cpu / first.cpu:.2f})",
            flush=True,
        )


def latencies(name: str, tier, block_bytes: int, turns: int) -> None:
    """Of one block at a time and of lookups: median and worst of so many turns."""
    buffer = make_buffers(block_bytes, 1)[0]

    def job(submit) -> float:
        start = time.perf_counter()
        submit()
        while not (answers := tier.poll()):
            time.sleep(0.00002)
        assert answers[0].statuses[0] is Status.OK, answers
        return time.perf_counter() - start

    def look(keys) -> float:
        start = time.perf_counter()
        while Presence.UNKNOWN in tier.lookup(keys):
            time.sleep(0.00002)
        return time.perf_counter() - start

    keys = [f"latency {turn}" for turn in range(turns)]
    figures = {
        "put": [job(lambda key=key: tier.submit_store(0, [key], [buffer])) for key in keys],
        "get": [job(lambda key=key: tier.submit_load(0, [key], [buffer])) for key in keys],
        "lookup": [look([f"none {turn}"]) for turn in range(turns)],
        "lookup of 128": [look([f"none {turn} {at}" for at in range(128)]) for turn in range(turns)],
    }
    words = ", ".join(f"{what} {median(times) * 1e3:.2f} ({max(times) * 1e3:.1f})" for what, times in figures.items())
    print(f"  {name}: milliseconds, median (worst of {turns}), blocks of {block_bytes / MIB:g} MiB: {words}", flush=True)


def through(opener, size: int, blocks: int, depth: int, job_blocks: int) -> Callable[[], Pass]:
    """A way that goes through a tier, with new keys each turn."""
    buffers = make_buffers(size, depth)
    turn = iter(range(1 << 30))

    def way() -> Pass:
        tier = opener(size, Namespace(model=f"bench {next(turn)} {time.time()}"), memoryview(buffers[0].obj))
        try:
            keys = list(range(blocks))
            begun = time.process_time()
            stored, loaded = store_all(tier, keys, buffers, job_blocks), load_all(tier, keys, buffers, job_blocks)
            assert stored.statuses[Status.OK] == loaded.statuses[Status.OK] == blocks, (stored, loaded)
            return Pass(stored.rate, loaded.rate, (time.process_time() - begun) / (stored.bytes / 1e9))
        finally:
            tier.remove(keys)
            tier.close()

    return way


def timed(nbytes: int, write: Callable[[], object], read: Callable[[], object]) -> Pass:
    begun, start = time.process_time(), time.perf_counter()
    write()
    middle = time.perf_counter()
    read()
    end = time.perf_counter()
    return Pass(nbytes / (middle - start), nbytes / (end - middle), (time.process_time() - begun) / (nbytes / 1e9))


def bench_redis(total: int, turns: int) -> None:
    import redis

    from kvloft.tiers.redis import RedisAccess, RedisTier
    from kvloft.tiers.remote import Bounds

    with RedisServer() as server:
        access = RedisAccess(url=server.url)

        def bare(size: int, read_size: int) -> Callable[[], Pass]:
            client = redis.Redis.from_url(server.url, protocol=2, socket_read_size=read_size)
            blocks = make_buffers(size, total // size)

            def send(commands) -> None:
                for at in range(0, len(commands), 2):
                    with client.pipeline(transaction=False) as pipeline:
                        for command in commands[at : at + 2]:
                            pipeline.execute_command(*command)
                        pipeline.execute()

            def way() -> Pass:
                sets = [("SET", f"bare{at}", block) for at, block in enumerate(blocks)]
                return timed(total, lambda: send(sets), lambda: send([("GET", command[1]) for command in sets]))

            return way

        for size in (MIB // 4, 2 * MIB):
            ways = {
                "bare client, its own 32 KiB reads": bare(size, 32768),
                "bare client, 1 MiB reads": bare(size, MIB),
            }
            for chunk in (MIB // 4, MIB, 8 * MIB):
                if chunk < 2 * size or size > MIB:
                    ways[f"tier, parts of {chunk // 1024} KiB"] = through(
                        lambda *a, chunk=chunk: RedisTier(access, *a[:2], chunk_bytes=chunk), size, total // size, 16, 4
                    )
            ways["tier, one reader, one writer"] = through(
                lambda *a: RedisTier(access, *a[:2], bounds=Bounds(readers=1, writers=1)), size, total // size, 16, 4
            )
            compare(f"Redis, blocks of {size / MIB:g} MiB", ways, turns)
        tier = RedisTier(access, 2 * MIB, Namespace(model="latency"), bounds=Bounds(lookup=5.0))
        latencies("Redis", tier, 2 * MIB, 50)
        tier.close()


def bench_mooncake(total: int, turns: int) -> None:
    from kvloft.tiers.mooncake import MOONCAKE_BOUNDS, MooncakeAccess, MooncakeTier, _address, _array

    with MooncakeServer("1 GB") as server:
        access = MooncakeAccess(url=server.url, metadata=server.metadata)
        holder = MooncakeTier(access, 2 * MIB, Namespace(model="latency"), bounds=MOONCAKE_BOUNDS)
        latencies("Mooncake", holder, 2 * MIB, 50)
        client = holder._store._client.connected()
        for size in (MIB // 4, 2 * MIB):
            blocks = [_array(buffer) for buffer in make_buffers(size, total // size)]

            def bare(size=size, blocks=blocks) -> Pass:
                names = [f"bare{at}" for at in range(len(blocks))]
                addresses, sizes = [_address(block) for block in blocks], [size] * len(blocks)
                result = timed(
                    total,
                    lambda: client.batch_put_from(names, addresses, sizes),
                    lambda: client.batch_get_into(names, addresses, sizes),
                )
                client.batch_remove(names, True)
                return result

            ways = {"bare client, all blocks in one call": bare}
            for title, arena in (("tier, straight from and to the arena", True), ("tier, through its own memory", False)):
                ways[title] = through(
                    lambda size, space, memory, arena=arena: MooncakeTier(
                        access, size, space, arena=memory if arena else None
                    ),
                    size,
                    total // size,
                    32,
                    8,
                )
            compare(f"Mooncake over TCP, blocks of {size / MIB:g} MiB", ways, turns)
        holder.close()


def bench_objects(total: int, turns: int) -> None:
    import asyncio

    import obstore
    from obstore.store import S3Store

    from kvloft.tiers.objects import ObjectAccess, ObjectTier

    with S3Server() as server:
        options = {"endpoint": server.endpoint, "region": "us-east-1"}
        access = ObjectAccess(url=f"s3://{server.bucket}", options=options, allow_http=True)
        store = S3Store(server.bucket, client_options={"allow_http": True}, **options)
        for size in (MIB // 4, 2 * MIB):
            blocks = make_buffers(size, total // size)

            def bare(blocks=blocks) -> Pass:
                async def put(at, gate) -> None:
                    async with gate:
                        await obstore.put_async(store, f"bare/{at}", blocks[at], use_multipart=False)

                async def get(at, gate) -> None:
                    async with gate:
                        await (await obstore.get_async(store, f"bare/{at}")).bytes_async()

                async def all_of(do) -> None:
                    gate = asyncio.Semaphore(32)
                    await asyncio.gather(*(do(at, gate) for at in range(len(blocks))))

                return timed(total, lambda: asyncio.run(all_of(put)), lambda: asyncio.run(all_of(get)))

            tier = through(lambda *a: ObjectTier(access, *a[:2]), size, total // size, 32, 8)
            compare(f"S3 (moto), blocks of {size / MIB:g} MiB", {"bare client, 32 at once": bare, "tier": tier}, turns)
        tier = ObjectTier(access, 2 * MIB, Namespace(model="latency"))
        latencies("S3 (moto)", tier, 2 * MIB, 20)
        tier.close()


def bench_packing(turns: int) -> None:
    """Sixteen blocks as sixteen objects; as one object and sixteen small ones that say where each block is; and as one
    object, if one could know where each block is without asking. A reader knows only the names of blocks."""
    from obstore.store import S3Store

    with S3Server() as server:
        store = S3Store(server.bucket, endpoint=server.endpoint, region="us-east-1", client_options={"allow_http": True})
        for size in (MIB // 16, MIB // 4, 2 * MIB):
            compare(f"Sixteen blocks of {size / MIB:g} MiB in an object store (moto)", packings(store, size, 16), turns)


def packings(store, size: int, count: int) -> dict[str, Callable[[], Pass]]:
    import asyncio

    import obstore

    block = os.urandom(size)
    whole = block * count

    async def put(name: str, data: bytes) -> None:
        await obstore.put_async(store, name, data, use_multipart=False)

    async def get(name: str) -> None:
        await (await obstore.get_async(store, name)).bytes_async()

    async def follow(at: int) -> None:
        await get(f"where/{at}")
        await obstore.get_range_async(store, "pack", start=at * size, end=(at + 1) * size)

    async def all_of(*work) -> None:
        await asyncio.gather(*work)

    def way(write, read) -> Callable[[], Pass]:
        return lambda: timed(count * size, lambda: asyncio.run(all_of(*write())), lambda: asyncio.run(all_of(*read())))

    places = range(count)
    return {
        "an object each": way(
            lambda: [put(f"one/{at}", block) for at in places], lambda: [get(f"one/{at}") for at in places]
        ),
        "one object, and where each block is": way(
            lambda: [put("pack", whole), *[put(f"where/{at}", b"pack 0 0") for at in places]],
            lambda: [follow(at) for at in places],
        ),
        "one object, if one knew": way(lambda: [put("pack", whole)], lambda: [get("pack")]),
    }


def least(act: Callable[[], object], turns: int) -> float:
    """CPU seconds of one run."""
    times = []
    for _ in range(turns):
        start = time.thread_time()
        act()
        times.append(time.thread_time() - start)
    return min(times)


def bench_sealing(turns: int) -> None:
    from kvloft.tiers.sealed import Plain, Sealed
    from kvloft.tiers.secret import Secret

    os.environ["BENCH_SECRET"] = "0123456789abcdef0123456789abcdef"
    secret = Secret("env:BENCH_SECRET")
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.1, 5.0, 128).astype(np.float32)
    values = (rng.standard_normal((8192, 128)).astype(np.float32) * scales).view(np.uint16)
    block = np.ascontiguousarray(values.reshape(-1)[1::2]).view(np.uint8).data
    into = memoryview(bytearray(block.nbytes))
    space = Namespace(model="bench", dtype="bfloat16")
    codecs = {
        "as it is (a copy)": Plain(),
        "encrypted": Sealed(space, secret=secret),
        "compressed, level 1": Sealed(space, compression=1),
        "compressed, level 3": Sealed(space, compression=3),
        "compressed, level 1, halves not parted": Sealed(Namespace(model="bench", dtype="other"), compression=1),
        "compressed, level 1, and encrypted": Sealed(space, secret=secret, compression=1),
    }
    print("Blocks of 2 MiB of bfloat16 (normal, each of 128 channels with a scale of its own), one core, CPU time")
    for name, codec in codecs.items():
        stored = codec.encode(bytes(32), block)
        encode = block.nbytes / least(partial(codec.encode, bytes(32), block), turns * 3)
        decode = block.nbytes / least(partial(codec.decode, bytes(32), stored, into), turns * 3)
        # Below this bandwidth, what is not transferred saves more time than unpacking takes.
        saved = 1 - stored.nbytes / block.nbytes
        pays = (
            f"  pays below {decode * saved / 1e9:.2f} GB/s read, {encode * saved / 1e9:.2f} written" if saved > 0.01 else ""
        )
        print(
            f"  {name:40s} ratio {block.nbytes / stored.nbytes:.3f}  "
            f"encode {encode / 1e9:5.2f} GB/s  decode {decode / 1e9:5.2f} GB/s{pays}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="redis,objects,mooncake,packing,sealing")
    asked = parser.parse_args()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", S3Server.access_key)
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", S3Server.secret_key)
    total, turns = (16 * MIB, 1) if asked.short else (128 * MIB, TURNS)
    servers = {"redis": RedisServer, "objects": S3Server, "mooncake": MooncakeServer, "packing": S3Server}
    benches = {
        "redis": lambda: bench_redis(total, turns),
        "objects": lambda: bench_objects(total // 4, turns),
        "mooncake": lambda: bench_mooncake(total, turns),
        "packing": lambda: bench_packing(turns),
        "sealing": lambda: bench_sealing(turns),
    }
    for name in asked.only.split(","):
        if name in servers and (missing := servers[name].missing()):
            print(f"{name}: left out, needs {missing}")
            continue
        benches[name]()


if __name__ == "__main__":
    main()
