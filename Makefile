# `make run` and `make test` set up .venv by themselves; a second call reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# pip would compile every module of every package, which takes as long as installing them. Instead, Python compiles what is
# imported and keeps it, even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=
# Two test processes with one thread each make better use of two cores than one process with two. A file's tests stay
# together, as they may share a study that takes half a minute.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: run test test-all check format docs bench tables wheel clean

run: $(INSTALLED)
	$(BIN)/arithscope run

test: check
	$(TEST)

test-all: check
	$(TEST) -m ""

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a website, in site/, with its reference tables generated anew.
docs: $(INSTALLED)
	$(BIN)/python -m tools.docs_tables
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(INSTALLED)
	$(BIN)/arithscope bench
	$(BIN)/python -m benchmarks.circuit

# The tables of the documents, from benchmarks/results.
tables: $(INSTALLED)
	$(BIN)/python -m benchmarks.goals
	$(BIN)/python -m benchmarks.tables

# The wheel and the source archive, in dist/.
wheel: $(INSTALLED)
	$(BIN)/python -m hatchling build

clean:
	rm -rf $(VENV) runs trained dist build site

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "arithscope needs Python 3.11 or newer; set PYTHON=/path/to/python3.11." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
