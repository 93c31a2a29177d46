# What a person types. The environment is made on the first call and whenever pyproject.toml changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart setup test kill-test check format clean

bin := .venv/bin
KILLS ?= 240
SEED ?= 1
sources := pyproject.toml setup.py infra/setup/venv

help:
	@echo "make quickstart   set up and run a real job: embedded servers, rollout and trainer, a report"
	@echo "make test         set up for development and run all tests"
	@echo "make kill-test    kill and stop everything at every point; KILLS=240 SEED=1"
	@echo "make check        ruff, mypy, import rules, links of the docs: what CI checks"
	@echo "make format       let ruff rewrite the sources"
	@echo "make setup        only make .venv, with the development tools"
	@echo "make clean        remove .venv and caches; the runs in .rolloutpipe stay"

.venv/.installed-run: $(sources)
	@infra/setup/venv torch,math,local
	@touch $@

.venv/.installed-dev: $(sources)
	@infra/setup/venv torch,math,local,sglang,megatron,dev
	@touch .venv/.installed-run $@

setup: .venv/.installed-dev

quickstart: .venv/.installed-run
	@exec $(bin)/rolloutpipe quickstart

test: setup
	$(bin)/python -m pytest

kill-test: setup
	$(bin)/python -m tests.kill.matrix --kills $(KILLS) --seed $(SEED)

check: setup
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/python -m pytest tests/unit/test_imports.py tests/unit/test_docs.py

format: setup
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .

clean:
	rm -rf .venv .venv-sglang .venv-sglang.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
