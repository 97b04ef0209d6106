# Everything runs in .venv, which is set up again only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := test,harness,serve,evaluate,tensorboard,cluster,filters,remote,chinese,docs,onnx,ctranslate2,gguf
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help check-gguf demo compare-demo docs test test-cluster test-sharding check check-wheel fonts chromium fuzz bench bench-encoders bench-recipes bench-scaling bench-low-resource bench-chinese bench-generation bench-recurrent bench-memory bench-attention bench-plan bench-seq2seq bench-finetuning bench-tasks bench-panel bench-demo fuzz-serve soak-serve bench-serving clean

help:  ## show these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed  ## train, save, reload and try small models in a few minutes
	$(BIN)/etymon demo

compare-demo: $(VENV)/.installed-test  ## compare five families and an objective on the prose inside Python (about an hour)
	$(BIN)/python -m benchmarks.comparing

test: check fonts chromium transformers-js .venv-peer/.installed  ## make check, then all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

test-cluster: $(VENV)/.installed-test  ## the longer tests of --on ray, which make test leaves out
	OMP_NUM_THREADS=1 $(BIN)/pytest -m cluster

test-sharding: $(VENV)/.installed-test  ## four processes, killed ones, nodes that come and go, two hosts (minutes; root for the hosts)
	@command -v ip >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -y -qq iproute2
	OMP_NUM_THREADS=1 $(BIN)/pytest -m sharding

check: $(VENV)/.installed-test  ## lint, formatting, types, the direction of imports, names and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q --durations=0 tests/test_imports.py
	$(BIN)/python -m tests.code_figures --check

check-wheel: $(VENV)/.installed-test  ## wheel and source archive into dist/, installed into an empty environment and tried (minutes)
	$(BIN)/python -m tests.packaging

# Tests of pictures in other scripts are skipped where there are no fonts for them.
FONTS := fonts-noto-cjk fonts-noto-core
fonts:  ## the fonts that tests of pictures need (Debian and Ubuntu, as root)
	@dpkg -s $(FONTS) >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -qq -y --no-install-recommends $(FONTS) >/dev/null; } \
	  || echo "No fonts for all scripts: some tests of pictures are skipped ($(FONTS))"

# Tests of the page of `etymon serve` are skipped where there is no browser for it.
# Its other dependencies, half a gigabyte, are for Node: a page needs the files of these two.
TRANSFORMERS_JS := @huggingface/transformers@4.3.1
ONNXRUNTIME_WEB := onnxruntime-web@1.31.0-dev.20260914-8d85527a0
.PHONY: transformers-js check-export
transformers-js:  ## what the page of docs/browser needs of npm, into .browser
	@[ -d .browser/node_modules ] || { command -v npm >/dev/null && rm -rf .browser/packed && mkdir -p .browser/packed \
	  && (cd .browser/packed && npm pack --silent $(TRANSFORMERS_JS) $(ONNXRUNTIME_WEB) >/dev/null 2>&1 \
	  && for name in huggingface-transformers:@huggingface/transformers onnxruntime-web:onnxruntime-web; do \
	    mkdir -p node_modules/$${name#*:} && tar -xzf $${name%%:*}-*.tgz -C node_modules/$${name#*:} --strip-components=1 || exit 1; done \
	  && rm -f *.tgz && mv node_modules ..); } \
	  || echo "No Transformers.js: the test of a classifier in the browser is skipped (npm)"

check-export: $(VENV)/.installed-test  ## export every cell of etymon export --list; writes docs/exports.md (an hour; goes on where it stopped)
	@$(BIN)/python -m tests.check_export

chromium:  ## the browser that tests of the page of etymon serve need (Debian, as root)
	@[ -x /usr/bin/chromium ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	  || echo "No Chromium: tests of the page of etymon serve are skipped (chromium)"

test-curves: $(VENV)/.installed-test  ## every family learns in half precision as it does in float32 (five minutes)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m curves tests/training/test_curves.py

docs: $(VENV)/.installed-test  ## the documentation as a site, in build/docs/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

check-gguf: $(VENV)/.installed-test .venv-llama/.installed  ## llama.cpp runs exports to GGUF: answers, greedy tokens, ids of 2,000 lines
	ETYMON_LLAMA=.venv-llama OMP_NUM_THREADS=1 $(BIN)/pytest -m llama tests/exports/test_llama.py

fuzz: $(VENV)/.installed-test  ## 10,000 damaged inputs through every verb (SEED=2 for others, CASE=7 for one of them again)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seed $(or $(SEED),1) $(if $(CASE),--case $(CASE))

fuzz-serve: $(VENV)/.installed-test  ## 5,000 damaged requests to a server (SEED=2 for others, CASE=7 for one of them again)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.server.fuzzing --seed $(or $(SEED),1) $(if $(CASE),--case $(CASE))

soak-serve: $(VENV)/.installed-test  ## ten minutes of rough clients: every answer compared, memory flat (MINUTES=1 for fewer)
	$(BIN)/python -m tests.server.soak --minutes $(or $(MINUTES),10)

bench: $(VENV)/.installed-test  ## run the benchmarks
	$(BIN)/python -m benchmarks

bench-serving: $(VENV)/.installed-test  ## etymon serve under load, beside transformers serve and sentence-transformers
	$(BIN)/python -m benchmarks serving

bench-plan: $(VENV)/.installed-test  ## what plans said of runs, and what they took
	$(BIN)/python -m benchmarks.plan

bench-generation: $(VENV)/.installed-test .venv-llama/.installed  ## decoding beside Transformers, CTranslate2 and llama.cpp
	$(BIN)/python -m benchmarks generation prompting

bench-recurrent: $(VENV)/.installed-test .venv-peer/.installed  ## memory, permutation and adaptive softmax beside their peers
	$(BIN)/python -m benchmarks recurrent

bench-seq2seq: $(VENV)/.installed-test  ## encoder-decoders beside Transformers
	$(BIN)/python -m benchmarks seq2seq translation

bench-finetuning: $(VENV)/.installed-test  ## fine-tuning and answering beside the Trainer of Transformers
	$(BIN)/python -m benchmarks finetuning

bench-tasks: $(VENV)/.installed-test  ## what pretraining buys in fine-tuning, family by family, task by task (hours)
	$(BIN)/python -m benchmarks.tasks

bench-demo: $(VENV)/.installed-test  ## what the demonstration learns, beside xz, over seeds and precisions (20 minutes)
	$(BIN)/python -m benchmarks.demo

bench-panel: $(VENV)/.installed-test  ## whether ten minutes of pretraining pay, every family against new weights (hours)
	$(BIN)/python -m benchmarks.panel

bench-low-resource: $(VENV)/.installed-test  ## what to do with 1, 10, 100 MB of text: tokenizer, size, languages (hours)
	$(BIN)/python -m benchmarks.low_resource

bench-chinese: $(VENV)/.installed-test  ## which tokenizer for Chinese: fit, bits per byte, tasks (an hour; ETYMON_BENCH_SEEDS=1 twenty minutes)
	$(BIN)/python -m benchmarks.chinese

bench-scaling: $(VENV)/.installed-test  ## how the loss falls with size and budget, which --size auto chooses by (an hour)
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.scaling --write

bench-recipes: $(VENV)/.installed-test  ## which recipe a pocket encoder learns most with, at equal operations (hours)
	$(BIN)/python -m benchmarks.recipes

bench-encoders: $(VENV)/.installed-test  ## what each pretraining of an encoder buys, at equal operations (hours)
	$(BIN)/python -m benchmarks.encoders

bench-memory: $(VENV)/.installed-test  ## what memory, permutation and mixed layers buy, at equal operations (hours)
	$(BIN)/python -m benchmarks.memory

bench-attention: $(VENV)/.installed-test  ## what attention buys a recurrent translator, by the length of a sentence (an hour)
	$(BIN)/python -m benchmarks.attention

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing that `python -m venv` makes, so an interrupted set-up is not taken for a whole one.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "etymon needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing etymon into $(VENV) (once; a minute or two)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing etymon with what the tests need into $(VENV) (once; two or three minutes)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS)]'
	@touch $(VENV)/.installed $@

# The last Transformers that had Transformer-XL and BERT's relative positions needs an environment of its own.
.venv-peer/.installed: benchmarks/peers/requirements.txt
	@echo "Installing an older Transformers into .venv-peer (once; a minute)"
	@$(PYTHON) -m venv --clear .venv-peer
	@.venv-peer/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@

# llama.cpp is compiled from its source package, with the instructions of this machine: needs cmake and a C++ compiler, and minutes.
.venv-llama/.installed: benchmarks/peers/llama_requirements.txt
	@echo "Building llama.cpp into .venv-llama (once; a quarter of an hour on two cores)"
	@$(PYTHON) -m venv --clear .venv-llama
	@CMAKE_ARGS=-DLLAVA_BUILD=OFF nice -n 19 .venv-llama/bin/python -m pip install -qq --disable-pip-version-check --no-binary llama-cpp-python -r $<
	@touch $@
