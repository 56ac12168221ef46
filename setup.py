"""The compiled part. All else stands in pyproject.toml, where compiled parts are still called experimental."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "kvloft._table",
            sorted(glob("csrc/*.c")),
            depends=sorted(glob("csrc/*.h")),
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
    ]
)
