"""The folders `components` and `benchmarks` are imported as `rolloutpipe_components` and `rolloutpipe_benchmarks`:
their plain names are too generic for a user's path. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = {"rolloutpipe_components": "components", "rolloutpipe_benchmarks": "benchmarks"}

renamed = [
    package
    for name, folder in FOLDERS.items()
    for package in (name, *(f"{name}.{inner}" for inner in find_packages(folder)))
]

setup(
    packages=[*find_packages(include=["rolloutpipe_core*"]), *renamed, "rolloutpipe_configs"],
    package_dir={**FOLDERS, "rolloutpipe_configs": "configs"},
)
