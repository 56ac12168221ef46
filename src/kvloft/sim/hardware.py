"""GPUs that a plan can be made for.

Peak rates are those of NVIDIA's and AMD's public data sheets as of 2025, for matrices without sparsity: half of a figure
that a sheet gives "with sparsity". `link_bytes_per_second` is an assumption: four fifths of what PCIe 4.0 and 5.0 with 16
lanes can move one way (32 and 64 GB/s). So is `hour`: a round price, with no source; sellers differ several times over.
"""

import msgspec

from kvloft.config import nearest
from kvloft.errors import ConfigError

_PCIE4, _PCIE5 = 25e9, 50e9


class Gpu(msgspec.Struct, frozen=True):
    """One GPU.

    Args:
        name: what it is called.
        flops: peak of 16-bit matrix products, per second.
        flops_fp8: of 8-bit ones; None where it has none.
        memory_bytes: of its own.
        link_bytes_per_second: to or from host memory.
        hour: what an hour of it is assumed to cost, in US dollars.
    """

    name: str
    flops: float
    flops_fp8: float | None
    memory_bytes: int
    link_bytes_per_second: float
    hour: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("H100", 989e12, 1979e12, 80 * 10**9, _PCIE5, 3.0),
        Gpu("H100-PCIe", 756e12, 1513e12, 80 * 10**9, _PCIE5, 2.5),
        Gpu("H200", 989e12, 1979e12, 141 * 10**9, _PCIE5, 3.5),
        Gpu("H20", 148e12, 296e12, 96 * 10**9, _PCIE5, 1.5),
        Gpu("B200", 2250e12, 4500e12, 180 * 10**9, _PCIE5, 5.0),
        Gpu("A100", 312e12, None, 80 * 10**9, _PCIE4, 1.5),
        Gpu("A10", 125e12, None, 24 * 10**9, _PCIE4, 0.6),
        Gpu("L40S", 362e12, 733e12, 48 * 10**9, _PCIE4, 1.0),
        Gpu("L4", 121e12, 242e12, 24 * 10**9, _PCIE4, 0.5),
        Gpu("MI300X", 1307e12, 2615e12, 192 * 10**9, _PCIE5, 2.5),
    )
}


def find_gpu(name: str) -> Gpu:
    """The GPU of this name; case does not matter.

    Raises:
        ConfigError: there is none.
    """
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    meant = nearest(name, GPUS)
    hint = f"did you mean {meant}?" if meant else f"choose one of: {', '.join(GPUS)}."
    raise ConfigError(f"gpu: {name!r} is unknown; {hint} For another, give the nearest and --prefill-rate as measured")
