# Common tasks of the project; `make help` lists them. All targets can be repeated.

PREFIX ?= /usr/local
DESTDIR ?=
# Device of `make demo`. `DEVICE=CPU make demo` fetches no engine, and builds the built-in one, which takes twice as long.
DEVICE ?= AUTO
# DURATION: seconds of `make soak` and `make chaos`, or of each target of `make fuzz`. SEED: the seed of a run that `make soak` or `make chaos` repeats.
DURATION ?= 60
SEED ?=
# SECONDS and ARGS: duration and further options of `make prove-serve`.
SECONDS ?= 1800
ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
# This variable is evaluated when a target uses it: GStreamer's pkg-config file may be installed only by `make setup`.
PLUGIN_DIR ?= $(shell pkg-config --variable=pluginsdir gstreamer-1.0)

# Folder for pipelines, and for the descriptions and models that they use.
DATA_DIR ?= $(PREFIX)/share/roiflow

# Folder for the C header include/roiflow.h, which programs that read results include.
INCLUDE_DIR ?= $(PREFIX)/include
MAN_DIR ?= $(PREFIX)/share/man
# The folders in which bash, fish and zsh search for completions.
BASH_DIR ?= $(PREFIX)/share/bash-completion/completions
FISH_DIR ?= $(PREFIX)/share/fish/vendor_completions.d
ZSH_DIR ?= $(PREFIX)/share/zsh/site-functions
PKGCONFIG_DIR ?= $(PREFIX)/lib/pkgconfig
DEMO_MODELS ?= yes

BINARY := $(TARGET)/release/roiflow
# The plugin has its own folder, because GStreamer loads every library in the folder of a plugin.
PLUGIN := $(TARGET)/gst/libgstroiflow.so

.PHONY: build help setup python demo test test-all test-analytics test-fresh deb test-deb soak chaos prove-serve prove-nodes fuzz bench docs install uninstall clean-demo
.DEFAULT_GOAL := build

build: setup ## Build the release: the command and the GStreamer plugin
	@cargo build --release --locked
	@mkdir -p $(dir $(PLUGIN))
	@cmp -s $(TARGET)/release/libroiflow.so $(PLUGIN) || install -m 755 $(TARGET)/release/libroiflow.so $(PLUGIN)

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Install the system packages that are missing
	@scripts/setup-system

python: setup ## Build the wheel of the Python package, without GStreamer: target/wheels
	@scripts/build-python

demo: setup ## Fetch models and a clip, build what is needed, and run the pipeline for faces, gender and age
	@scripts/demo "$(DEVICE)"

test: setup ## Check format, lints and documentation, and run all tests: about 20 minutes on two cores, once built
	@scripts/check

test-all: test ## Run `make test`, then check licenses and minimum Rust version, and run model checks, soak, chaos test, fuzzing, address sanitizer: 21 minutes
	@scripts/check --long

test-analytics: build ## Test with the analytics elements of GStreamer 1.26 and 1.28 in Debian roots (needs root and network)
	@scripts/test-analytics trixie $(PLUGIN) $(TARGET)
	@scripts/test-analytics sid $(PLUGIN) $(TARGET)

test-fresh: ## Run `make demo` and `make test` in bare Debian 12 roots, as root and as a user with sudo (needs root and network; two hours)
	@scripts/test-fresh

soak: setup ## Stress 16 streams with flushes, seeks and failures: DURATION=seconds, SEED=number
	@scripts/fetch-demo || echo "The soak test continues with a generated clip." >&2
	@DURATION="$(DURATION)" SEED="$(SEED)" cargo test --quiet --locked --test soak

chaos: setup ## Run 16 cameras, 5 destinations, a disk and a model that fail at random: DURATION=seconds, SEED=number
	@DURATION="$(DURATION)" SEED="$(SEED)" cargo test --quiet --locked --test chaos

prove-serve: CAMERAS ?= 16
prove-serve: build ## Run `roiflow serve` with simulated cameras, viewers and failing brokers: SECONDS, CAMERAS, ARGS (such as --run-first)
	@scripts/prove-serve --seconds "$(SECONDS)" --cameras "$(CAMERAS)" --binary $(BINARY) $(ARGS)

prove-nodes: CAMERAS ?= 24
prove-nodes: build ## Run the tests of three nodes with 24 cameras, and measure messages and processor time: CAMERAS=number
	@scripts/fetch-tools nats-server
	@ROIFLOW_TEST_CAMERAS="$(CAMERAS)" cargo test --locked --test stream -- --nocapture --test-threads 1 nodes
	@scripts/measure-nodes --streams "$(CAMERAS)" --binary $(BINARY)

fuzz: setup ## Fuzz model outputs, geometry, descriptions and model files: DURATION=seconds per target
	@scripts/fuzz "$(DURATION)"

bench: build ## Benchmark against the bare engine, OpenCV and plain Python; writes target/bench/summary.json
	@status=0; cargo bench --quiet --locked --no-default-features --bench requests || status=$$?; \
	  cargo bench --quiet --locked --bench metadata || status=$$?; \
	  cargo bench --quiet --locked --bench outage || status=$$?; \
	  scripts/compare-fill || status=$$?; \
	  scripts/compare-pipelines || status=$$?; exit $$status

docs: ## Build the book as HTML: target/book/index.html
	@scripts/build-docs

install: ## Install the command with manual pages and completions, the plugin with its C header, the pipelines and descriptions (PREFIX, PLUGIN_DIR, DESTDIR)
	@test -f $(BINARY) -a -f $(PLUGIN) || { echo "expected a build to install, got none: run 'make build' first, not as root." >&2; exit 1; }
	@test -n "$(PLUGIN_DIR)" || { echo "cannot find GStreamer's plugin folder: set PLUGIN_DIR=." >&2; exit 1; }
	install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/roiflow
	install -D -m 644 $(PLUGIN) $(DESTDIR)$(PLUGIN_DIR)/libgstroiflow.so
	install -D -m 644 include/roiflow.h $(DESTDIR)$(INCLUDE_DIR)/roiflow.h
	install -d $(DESTDIR)$(PKGCONFIG_DIR)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@INCLUDE_DIR@|$(INCLUDE_DIR)|' -e 's|@PLUGIN_DIR@|$(PLUGIN_DIR)|' \
	  -e "s|@VERSION@|$$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)|" \
	  include/roiflow.pc.in > $(DESTDIR)$(PKGCONFIG_DIR)/roiflow.pc
	@chmod 644 $(DESTDIR)$(PKGCONFIG_DIR)/roiflow.pc
	install -d $(DESTDIR)$(DATA_DIR)/pipelines $(DESTDIR)$(DATA_DIR)/assets/models
	install -m 644 pipelines/*.toml $(DESTDIR)$(DATA_DIR)/pipelines
	install -m 644 assets/models/* $(DESTDIR)$(DATA_DIR)/assets/models
	install -m 644 assets/model-description.schema.json assets/results.schema.json $(DESTDIR)$(DATA_DIR)/assets
	@# The command writes its manual pages and completions. A command that was built for another machine cannot run here.
	@if $(BINARY) --version >/dev/null 2>&1; then \
	  set -ex; umask 022; $(BINARY) man-pages $(DESTDIR)$(MAN_DIR)/man1; \
	  install -d $(DESTDIR)$(BASH_DIR) $(DESTDIR)$(FISH_DIR) $(DESTDIR)$(ZSH_DIR); \
	  $(BINARY) completions bash > $(DESTDIR)$(BASH_DIR)/roiflow; \
	  $(BINARY) completions fish > $(DESTDIR)$(FISH_DIR)/roiflow.fish; \
	  $(BINARY) completions zsh > $(DESTDIR)$(ZSH_DIR)/_roiflow; \
	else echo "Manual pages and completions are not installed: $(BINARY) does not run on this machine."; fi
	@# Install the demo's models if they were fetched, because pipelines/faces.toml uses them. DEMO_MODELS=no leaves them out.
	@if [ "$(DEMO_MODELS)" != yes ]; then :; elif ls assets/demo/*.onnx >/dev/null 2>&1; then \
	  install -d $(DESTDIR)$(DATA_DIR)/assets/demo; \
	  install -m 644 assets/demo/*.onnx assets/demo/*.LICENSE assets/demo/*.md $(DESTDIR)$(DATA_DIR)/assets/demo; \
	else echo "The demo's models are not installed: run 'make demo' first to use pipelines/faces.toml."; fi

deb: build ## Make a Debian package of the build: target/deb
	@scripts/make-deb $(TARGET)

test-deb: deb ## Install, use and remove the Debian package in fresh Debian 12 and 13 roots (needs root and network)
	@scripts/test-deb $(TARGET)/deb/roiflow_*.deb

uninstall: ## Remove the files of `make install`
	@test -n "$(PLUGIN_DIR)" || { echo "cannot find GStreamer's plugin folder: set PLUGIN_DIR=." >&2; exit 1; }
	rm -f $(DESTDIR)$(PREFIX)/bin/roiflow $(DESTDIR)$(PLUGIN_DIR)/libgstroiflow.so
	rm -f $(DESTDIR)$(INCLUDE_DIR)/roiflow.h $(DESTDIR)$(PKGCONFIG_DIR)/roiflow.pc
	rm -f $(DESTDIR)$(MAN_DIR)/man1/roiflow.1 $(DESTDIR)$(MAN_DIR)/man1/roiflow-*.1
	rm -f $(DESTDIR)$(BASH_DIR)/roiflow $(DESTDIR)$(FISH_DIR)/roiflow.fish $(DESTDIR)$(ZSH_DIR)/_roiflow
	rm -rf $(DESTDIR)$(DATA_DIR)/pipelines $(DESTDIR)$(DATA_DIR)/assets
	@rmdir $(DESTDIR)$(DATA_DIR) 2>/dev/null || true

clean-demo: ## Remove the fetched models, clips and engines, and the results
	rm -rf assets/demo out "$$(scripts/fetch-engines --folder)"
