"""The versions of vLLM that kvloft knows. Needs no vLLM, so that what looks at a machine can ask."""

import re

from kvloft.errors import UnsupportedVersion

SUPPORTED = ((0, 32), (0, 33))
"""Major and minor numbers. Whole engines are tested with the first; with the second, what kvloft's manager and vLLM's say to
each other, and no engine."""
INSTALL = f"pip install 'vllm>={SUPPORTED[0][0]}.{SUPPORTED[0][1]},<{SUPPORTED[-1][0]}.{SUPPORTED[-1][1] + 1}'"
"""What puts a supported one in place."""


def parse_release(version: str) -> tuple[int, int]:
    """Major and minor number of a supported version of vLLM.

    Raises:
        UnsupportedVersion: it is none of `SUPPORTED`.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.|$)", version)
    release = (int(match[1]), int(match[2])) if match else None
    if release not in SUPPORTED:
        names = " and ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise UnsupportedVersion(
            f"vLLM {version} is installed; this kvloft supports vLLM {names}. Install one of these, "
            f"or a kvloft release that names yours: {INSTALL}"
        )
    return release
