"""Where megatron-core is not installed, the trainer says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rolloutpipe_components.trainer.backends.choice import make_backend

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput


def test_megatron_core_is_missing(monkeypatch):
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if ".backends.megatron." in name]:
        monkeypatch.delitem(sys.modules, name)
    config = RunConfig.model_validate({"run": "test", "model": {"path": "model"}, "trainer": {"kind": "megatron"}})
    with pytest.raises(BadInput, match=r"rolloutpipe\[megatron\]"):
        make_backend(config, Path("model"), None)
