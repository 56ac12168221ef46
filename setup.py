"""The compiled parts. All else stands in pyproject.toml, where compiled parts are still called experimental."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"kvloft.{name}",
            sorted(glob(f"{folder}/*.c")),
            depends=sorted(glob(f"{folder}/*.h")),
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
        for name, folder in (("_table", "csrc"), ("_frames", "csrc/frames"))
    ]
)
