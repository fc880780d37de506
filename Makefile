# Bywash: "make perf" measures this machine, "make test" tests what it can run. "make help" lists the rest.

# Where go.dev's own installation instructions put Go, for shells that do not say so.
export PATH := $(PATH):/usr/local/go/bin
# The version comes from git describe below; Go's own stamping fails in a checkout that another user owns. With -trimpath,
# what was built in one checkout is taken from Go's cache in another.
export GOFLAGS := $(filter-out -buildvcs=% -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -buildvcs=false -trimpath

# Go's build cache does not notice that headers of the system have come or gone: a name for them makes another build.
# A recipe has one environment: what follows hack/deps in it is made by another make.
cgo_cflags := $(filter-out -DBYWASH%,$(or $(CGO_CFLAGS),-g -O2))
export CGO_CFLAGS = $(cgo_cflags)$(shell test -e /usr/include/infiniband/verbs.h -a -e /usr/include/rdma/rdma_cma.h && echo ' -DBYWASH_RDMA_HEADERS')

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := $(if $(VERSION),-X main.version=$(VERSION))

PREFIX   ?= /usr/local
DURATION ?= 1h
FUZZTIME ?= 10s
GROUPS   ?=
BENCH    ?= .
PERF_FLAGS ?=
# The tests' groups, their flags and where they run stand in hack/test; TEST_FLAGS adds flags, GROUPS selects.
export TEST_FLAGS TESTFLAGS DEV BASE

# Directories, as "./dir", of the files that match a pattern.
dirs_with = $(patsubst %/,%,$(sort $(dir $(shell grep -rlE --include='*_test.go' --exclude-dir=testdata '$(1)' .))))

.NOTPARALLEL:
.PHONY: help deps build man install perf test test-quick lint fmt hooks bench fuzz soak peers clean vm
.PHONY: test-changed test-all test-rest test-distros perf-vm test-vm bench-vm shell-vm test-vm-debug test-hw

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PERF_FLAGS='-s 8'  FUZZTIME=$(FUZZTIME)  DURATION=$(DURATION)  BENCH=$(BENCH)  PREFIX=$(PREFIX)"

deps: ## install the system packages that are missing
	@hack/deps

build: ## build bin/bywash
	@echo "build bin/bywash $(VERSION)"
	@go build -ldflags '$(LDFLAGS)' -o bin/bywash ./cmd/bywash

man: build ## write the man pages and shell completions into bin/share
	@echo "write bin/share"
	@rm -rf bin/share
	@mkdir -p bin/share/man/man1 bin/share/bash-completion/completions bin/share/zsh/site-functions bin/share/fish/vendor_completions.d
	@bin/bywash man --dir bin/share/man/man1
	@bin/bywash completion bash > bin/share/bash-completion/completions/bywash
	@bin/bywash completion zsh > bin/share/zsh/site-functions/_bywash
	@bin/bywash completion fish > bin/share/fish/vendor_completions.d/bywash.fish

install: man ## install under PREFIX (and DESTDIR)
	@echo "install into $(DESTDIR)$(PREFIX)"
	@install -D -m 755 bin/bywash "$(DESTDIR)$(PREFIX)/bin/bywash"
	@find bin/share -type f -printf '%P\n' | while read -r f; do install -D -m 644 "bin/share/$$f" "$(DESTDIR)$(PREFIX)/share/$$f" || exit; done

perf: ## measure every driver that can run here; PERF_FLAGS adds flags
	@hack/deps --for perf
	@$(MAKE) --no-print-directory build
	@bin/bywash perf -d all $(PERF_FLAGS)

test: ## run all tests that this machine can run: also with -race, and in virtual machines (14 to 28 minutes)
	@hack/test test

test-quick: ## run the short tests (three minutes)
	@hack/test quick

test-changed: ## lint and test the packages that differ from BASE (main), and what imports them (two minutes for a leaf)
	@hack/lint quick
	@hack/test changed

test-vm: ## run the tests in virtual machines, on both kernels: they need an RDMA device or the kernel module
	@hack/test vm

test-all: ## everything there is: make test, the second kernel whole, hundreds of deaths, attackers, sanitizers, other Debians (two hours more)
	@hack/test all

test-rest: ## of those, what make test leaves out; GROUPS='hostile asan' selects some (hack/test --help)
	@hack/test rest $(GROUPS)

test-distros: ## run make perf and make test in bare trees of Debian 12 and 13 (root only)
	@hack/distros

test-vm-debug: ## the tests of verbs and the module on a kernel with KASAN, lockdep and kmemleak (built once: five minutes)
	@hack/test debug

test-hw: ## the tests of RDMA on a real device: make test-hw DEV=mlx5_0
	@hack/test hw

vm:
	@go build -o bin/vm ./hack/vm

perf-vm: ## measure RDMA over Soft-RoCE in a virtual machine, beside TCP
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -- bin/bywash perf -d verbs,sock-tcp $(PERF_FLAGS)

bench-vm: ## measure verbs beside perftest, and the kernel module beside Unix sockets, in virtual machines
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -timeout 20m -- hack/bench-vm
	@hack/kmod 6.1
	@bin/vm -timeout 10m -modules '$(CURDIR)/bin/kmod/6.1/qnix.ko' -- bin/bywash perf -d qnix,sock-unix -t lat,bw,barrier,bcast $(PERF_FLAGS)

shell-vm: ## a shell in a virtual machine with Soft-RoCE
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -shell

lint: ## check format, vet, staticcheck, dead code, other platforms, scripts, go.mod and commits
	@hack/deps --for lint
	@hack/lint

hooks: ## have git run the linters that take seconds before each push (hack/lint quick)
	@git config core.hooksPath hack/hooks

fmt: ## format the Go code
	@echo "gofmt"
	@gofmt -l -w .

bench: ## run the benchmarks, one package at a time; BENCH selects some
	@set -e; for dir in $(call dirs_with,^func Benchmark); do \
		echo "bench $$dir"; \
		go test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 -timeout 60m $$dir; \
	done

fuzz: ## run every fuzz target for FUZZTIME each
	@grep -rnoE --include='*_test.go' --exclude-dir=testdata '^func Fuzz[A-Za-z0-9_]*' . | sort | \
	while IFS=: read -r file line name; do \
		name=$${name#func }; \
		echo "fuzz $${file%/*} $$name $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$${file%/*}" </dev/null || exit 1; \
	done

soak: ## repeat the long tests (they read BYWASH_SOAK) and the fuzz targets for DURATION
	@echo '$(DURATION)' | grep -qE '^([0-9]+h)?([0-9]+m)?([0-9]+s)?$$' && [ -n '$(DURATION)' ] || \
		{ echo "DURATION=$(DURATION): want hours, minutes or seconds, such as 1h, 90m or 30s" >&2; exit 2; }
	@set -e; \
	seconds=$$(( $$(echo '$(DURATION)' | sed 's/h/*3600+/; s/m/*60+/; s/s/+/')0 )); \
	end=$$(( $$(date +%s) + seconds )); round=1; \
	while :; do \
		echo "soak round $$round"; \
		SOAK_SECONDS=$$seconds hack/test soak; \
		$(MAKE) --no-print-directory fuzz FUZZTIME=1m; \
		[ $$(date +%s) -lt $$end ] || break; \
		round=$$(( round + 1 )); \
	done; \
	echo "soak: $$round rounds passed"

peers: build ## measure Open MPI, MPICH, UCX and libfabric beside bywash
	@hack/peers/run

clean: ## remove what make built
	@rm -rf bin
