# make table1   set everything up and write Table 1 at its smallest scale
# make test     set everything up and run the tests
# make slurm    start a one-machine Slurm to try profiles/slurm on (Debian, root); make slurm-stop

PYTHON ?= python3.11
PRESET ?= demo
BIN := .venv/bin

.PHONY: table1 test setup slurm slurm-stop

setup: .venv/.installed

.venv/.installed: pyproject.toml
	@echo "setting up .venv (torch is large: this takes a few minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . --config-settings editable_mode=compat
	@$(BIN)/python -m compileall -q src
	@touch $@

table1: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --profile profiles/local table1 --config preset=$(PRESET)
	@$(BIN)/straightdp show table1 --preset $(PRESET)

test: setup
	@$(BIN)/python -m pytest

slurm slurm-stop:
	@$(PYTHON) scripts/slurm_cluster.py $(if $(filter slurm,$@),start,stop)
