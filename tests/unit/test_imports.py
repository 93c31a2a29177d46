"""Who may import whom: benchmarks, pipelines -> components -> rolloutpipe_core; components never each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "kfp", "sglang", "megatron"}
FOLDER_OF = {"rolloutpipe_components": "components", "rolloutpipe_benchmarks": "benchmarks"}

WALK_CORE = """
import importlib, pkgutil, sys, rolloutpipe_core
names = [module.name for module in pkgutil.walk_packages(rolloutpipe_core.__path__, "rolloutpipe_core.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), *sorted(set(sys.argv[1:]) & set(sys.modules)))
"""


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Every module of a package as (dotted name, file), read from the tree."""
    folder = ROOT / FOLDER_OF.get(package, package)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def imported(module: str, path: Path) -> set[str]:
    """Absolute names of all that a file imports anywhere, with `from a import b` as `a.b`."""
    names: set[str] = set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{prefix}.{alias.name}" for alias in node.names}
    return names


def top(name: str, depth: int = 1) -> str:
    return ".".join(name.split(".")[:depth])


def test_core_imports_no_heavy_library() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WALK_CORE, *HEAVY], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    count, *heavy = result.stdout.split()
    assert int(count) > 30
    assert heavy == []


def test_core_never_imports_components_or_pipelines() -> None:
    wrong = {
        (module, name)
        for module, path in modules("rolloutpipe_core")
        for name in imported(module, path)
        if top(name) in {"rolloutpipe_components", "components", "pipelines", "rolloutpipe_benchmarks", "benchmarks"}
    }
    assert wrong == set()


def test_components_never_import_each_other() -> None:
    wrong = {
        (module, name)
        for module, path in modules("rolloutpipe_components")
        for name in imported(module, path)
        if top(name) == "rolloutpipe_components" and top(name, 2) != top(module, 2)
    }
    assert wrong == set()


@pytest.mark.parametrize(
    "package", ["rolloutpipe_core", "rolloutpipe_components", "pipelines", "rolloutpipe_benchmarks"]
)
def test_infra_is_never_imported(package: str) -> None:
    wrong = {
        (module, name) for module, path in modules(package) for name in imported(module, path) if top(name) == "infra"
    }
    assert wrong == set()


def test_relative_imports_are_resolved(tmp_path: Path) -> None:
    """The rules above stand on this reading."""
    file = tmp_path / "service.py"
    file.write_text("from ..trainer import trainer\nfrom . import engine\nimport torch.nn as nn\n")
    assert imported("rolloutpipe_components.rollout.service", file) == {
        "rolloutpipe_components.trainer.trainer",
        "rolloutpipe_components.rollout.engine",
        "torch.nn",
    }
