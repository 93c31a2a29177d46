"""The folder `components` is imported as `rolloutpipe_components`: a plain `components` is too generic a name
for a user's path. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

components = ["rolloutpipe_components", *(f"rolloutpipe_components.{name}" for name in find_packages("components"))]

setup(
    packages=[*find_packages(include=["rolloutpipe_core*"]), *components, "rolloutpipe_configs"],
    package_dir={"rolloutpipe_components": "components", "rolloutpipe_configs": "configs"},
)
