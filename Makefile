# Bywash: "make perf" measures this machine, "make test" tests what it can run. "make help" lists the rest.

# Where go.dev's own installation instructions put Go, for shells that do not say so.
export PATH := $(PATH):/usr/local/go/bin
# The version comes from git describe below; Go's own stamping fails in a checkout that another user owns.
export GOFLAGS := $(filter-out -buildvcs=%,$(shell go env GOFLAGS 2>/dev/null)) -buildvcs=false

# Go's build cache does not notice that headers of the system have come or gone: a name for them makes another build.
# A recipe has one environment: what follows hack/deps in it is made by another make.
cgo_cflags := $(filter-out -DBYWASH%,$(or $(CGO_CFLAGS),-g -O2))
export CGO_CFLAGS = $(cgo_cflags)$(shell test -e /usr/include/infiniband/verbs.h -a -e /usr/include/rdma/rdma_cma.h && echo ' -DBYWASH_RDMA_HEADERS')

# Otherwise every process built with -race takes a second to end, and tests start hundreds.
export GORACE := $(GORACE) atexit_sleep_ms=0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := $(if $(VERSION),-X main.version=$(VERSION))

PREFIX   ?= /usr/local
DURATION ?= 1h
FUZZTIME ?= 10s
GROUPS   ?=
BENCH    ?= .
# Tests share memory, cores and network namespaces, so one package runs at a time; and beside them, in "make test", a
# virtual machine or two, which compute while others wait.
TESTFLAGS  ?= -p 1 -count=1 -timeout 25m
PERF_FLAGS ?=
TEST_FLAGS ?=

TESTSUM := bin/testsum -o bin/testsum.last
# Directories, as "./dir", of the files that match a pattern.
dirs_with = $(patsubst %/,%,$(sort $(dir $(shell grep -rlE --include='*_test.go' --exclude-dir=testdata '$(1)' .))))

# State machines, C, and what starts machines: there is nothing in them for the race detector.
ONE_GOROUTINE := /(afxdp/internal/(link|wireshark)|kmod/ncp|hack/.*|test/.*|session/internal/(rdv|match|header))$$
# What looks for files that were left in /dev/shm, and the launchers, some of which have files there as long as a job runs, go
# one after the other; others may run beside them, and afxdp has a /dev/shm of its own. The rest is here for its time: half of all.
ONE_LANE := ./driver/drivertest ./qnix ./session/launch ./shm ./session ./cmd/bywash
# What starts machines.
MACHINES := ./hack/vm ./test/rdma ./test/qnixmod ./test/qnix

# Tests that need an RDMA device run in virtual machines with Soft-RoCE, on Debian 12's kernel and that of its backports.
VM_PKGS := ./verbs ./verbs/ibv ./verbs/internal/connect
vm_group = 'vm-$(1)$(if $(2),?):' -exec '$(CURDIR)/bin/vm $(2) -kernel $(1) --' $(TESTFLAGS) $(TEST_FLAGS) -short $(if $(3),-skip '$(3)') $(VM_PKGS)
ETH_TESTS := ^Test(Segments|LossLosesNothing|LinkDownAndUp|DeviceDeleted|MTUChange|AddressChange|LongPackets|TracksShareADeviceOfLongFrames)$$
eth_group = 'eth-$(1)$(if $(2),?):' -exec '$(CURDIR)/bin/vm $(2) -kernel $(1) -modules veth,bridge,sch_netem,8021q --' \
	$(TESTFLAGS) -parallel 1 -short -run '$(ETH_TESTS)' $(if $(3),-skip '$(3)') ./afxdp
# What a session does over RDMA.
SESSION_TESTS := EveryDriverCarriesASession|DeathIsNoticedOverEveryDriver|EveryModeWorksOverVerbs|MessagesGoOnWhenARailOfVerbsIsLost
session_group = 'session-$(1)$(if $(2),?):' -exec '$(CURDIR)/bin/vm $(2) -kernel $(1) --' $(TESTFLAGS) -short \
	-run '^Test($(SESSION_TESTS)$(if $(3),|$(3)))$$/^(verbs|null|put|get|cooperative|[0-9])' ./session
# The kernel module's, which hack/kmod has built for the kernel, and the driver's on two NICs of the module.
# Without those that start machines themselves, or run in two.
KMOD_HOST := ^Test(ModuleBuilds|TwoMachines|BetweenMachines)
kmod_group = 'kmod-$(1)$(if $(2),?):' -exec '$(CURDIR)/bin/vm $(2) -kernel $(1) -env BYWASH_QNIX_KO=$(CURDIR)/bin/kmod/$(1)/qnix.ko --' \
	$(TESTFLAGS) -short -skip '$(KMOD_HOST)$(if $(3),|$(3))' ./test/qnixmod ./qnix
# The second argument is what the newer kernel is not asked again.
vm_groups = $(call vm_group,6.1,$(1)) -- $(call vm_group,6.12,$(1),$(2)) -- $(call eth_group,6.1,$(1)) -- $(call eth_group,6.12,$(1),$(if $(2),$(ETH_TWICE))) -- \
	$(call session_group,6.1,$(1),$(if $(2),,QuiescedSessionsGoOnAsIfNothingHadBeen)) -- \
	$(call kmod_group,6.1,$(1)) -- $(call kmod_group,6.12,$(1),$(if $(2),^TestConformance))
# "make test" is to take less than half an hour: the newer kernel has the suite of the small track, lossy links and long frames, and no session is quieted over RDMA. "make test-vm" leaves nothing out.
TWICE := ^TestConformance(Large|Shared)$$
ETH_TWICE := ^Test(Segments|LinkDownAndUp|DeviceDeleted|MTUChange|AddressChange)$$
LOSSY_AGAIN := ^TestTwoMachinesOnALossyLink$$/^6\.1$$

.NOTPARALLEL:
.PHONY: help deps build man install perf test test-quick lint fmt bench fuzz soak peers clean testsum vm
.PHONY: test-all test-rest test-now test-vm-now kmod perf-vm test-vm bench-vm shell-vm test-vm-debug test-hw

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PERF_FLAGS='-d shm -s 8'  FUZZTIME=$(FUZZTIME)  DURATION=$(DURATION)  BENCH=$(BENCH)  PREFIX=$(PREFIX)"

deps: ## install the system packages that are missing
	@hack/deps

build: ## build bin/bywash
	@echo "build bin/bywash $(VERSION)"
	@go build -trimpath -ldflags '$(LDFLAGS)' -o bin/bywash ./cmd/bywash

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
	@cd bin/share && find . -type f -exec install -D -m 644 {} "$(DESTDIR)$(PREFIX)/share/{}" \;

perf: ## measure every driver that can run here; PERF_FLAGS adds flags
	@hack/deps --for perf
	@$(MAKE) --no-print-directory build
	@bin/bywash perf -d all $(PERF_FLAGS)

testsum:
	@mkdir -p bin && rm -f bin/testsum.last
	@go build -o bin/testsum ./hack/testsum

test: ## run all tests that this machine can run: also with -race, and in virtual machines
	@hack/deps --for test
	@$(MAKE) --no-print-directory test-now

test-now: testsum kmod
	@$(TESTSUM) host: $(TESTFLAGS) $(TEST_FLAGS) $$(go list ./... | grep -vxF "$$(go list $(MACHINES))") -- \
		race: -race -short $(TESTFLAGS) $(TEST_FLAGS) $$(go list ./... | grep -vE '$(ONE_GOROUTINE)') ++ \
		machines: $(TESTFLAGS) $(TEST_FLAGS) -skip '$(LOSSY_AGAIN)' $(MACHINES) -- $(call vm_groups,-skip,$(TWICE))

vm:
	@go build -o bin/vm ./hack/vm

# Where no kernel's headers can be had, the machines that need the module have none either.
kmod: vm
	@for kernel in 6.1 6.12; do hack/kmod $$kernel || echo "kmod: no module for $$kernel" >&2; done

test-vm: ## of those, the ones in virtual machines: they need an RDMA device
	@hack/deps --for vm
	@$(MAKE) --no-print-directory test-vm-now

test-vm-now: testsum kmod
	@$(TESTSUM) $(call vm_groups) -- machines: $(TESTFLAGS) $(MACHINES)

# What belongs to a machine, for hack/test-all. The shell takes $$ for $.
test-rest-env = VM_PKGS='$(VM_PKGS)' ETH_TESTS='$(ETH_TESTS)' SESSION_TESTS='$(SESSION_TESTS)' KMOD_HOST='$(KMOD_HOST)'

test-all: ## everything there is: make test, the second kernel whole, hundreds of deaths, attackers, sanitizers (two hours)
	@status=0; $(MAKE) --no-print-directory test || status=$$?; \
		$(MAKE) --no-print-directory test-rest && exit $$status

test-rest: ## of those, what make test leaves out; GROUPS='hostile asan' selects some (hack/test-all -h)
	@hack/deps --for test
	@$(MAKE) --no-print-directory testsum kmod
	@$(test-rest-env) hack/test-all $(GROUPS)

test-vm-debug: ## the same on a kernel with KASAN, lockdep and kmemleak (built once: five minutes)
	@hack/deps --for vm
	@$(MAKE) --no-print-directory testsum vm
	@hack/kmod debug
	@$(TESTSUM) vm-debug: -exec '$(CURDIR)/bin/vm -debug -timeout 60m --' -p 1 -count=1 -timeout 60m -short ./verbs -- \
		kmod-debug: -exec '$(CURDIR)/bin/vm -debug -timeout 60m -env BYWASH_QNIX_FUZZ=2m \
		-env BYWASH_QNIX_KO=$(CURDIR)/bin/kmod/debug/qnix.ko --' -p 1 -count=1 -timeout 60m -skip '$(KMOD_HOST)' ./test/qnixmod
	@BYWASH_VM_DEBUG=1 $(TESTSUM) host: $(TESTFLAGS) ./hack/vm -run Debug

test-hw: ## the same on a real device: make test-hw DEV=mlx5_0
	@[ -n '$(DEV)' ] || { echo "make test-hw DEV=name: which device? (bin/bywash info -d verbs lists them)" >&2; exit 2; }
	@$(MAKE) --no-print-directory testsum
	@BYWASH_RDMA_DEV='$(DEV)' $(TESTSUM) hw: $(TESTFLAGS) $(TEST_FLAGS) $(VM_PKGS)

perf-vm: ## measure RDMA over Soft-RoCE in a virtual machine, beside TCP
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -- bin/bywash perf -d verbs,tcp $(PERF_FLAGS)

bench-vm: ## measure verbs beside perftest, and the kernel module beside Unix sockets, in virtual machines
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -timeout 20m -- hack/bench-vm
	@hack/kmod 6.1
	@go test -exec '$(CURDIR)/bin/vm -timeout 20m -env BYWASH_QNIX_KO=$(CURDIR)/bin/kmod/6.1/qnix.ko --' -run '^$$' -bench . -benchtime 1x -timeout 20m ./test/qnixmod
	@bin/vm -timeout 10m -modules '$(CURDIR)/bin/kmod/6.1/qnix.ko' -- bin/bywash perf -d qnix,unix -t lat,bw,barrier,bcast $(PERF_FLAGS)

shell-vm: ## a shell in a virtual machine with Soft-RoCE
	@hack/deps --for vm
	@$(MAKE) --no-print-directory build vm
	@bin/vm -shell

test-quick: testsum ## run the short tests (two to three minutes)
	@$(TESTSUM) short: -short $(TESTFLAGS) $(TEST_FLAGS) $(ONE_LANE) ++ \
		others: -short $(TESTFLAGS) $(TEST_FLAGS) \
		$$(go list ./... | grep -vxF "$$(go list $(ONE_LANE) $(filter ./test/%,$(MACHINES)))")

lint: ## check format, vet, staticcheck, other platforms, scripts and go.mod
	@hack/deps --for lint
	@hack/lint

fmt: ## format the Go code
	@echo "gofmt"
	@gofmt -l -w .

bench: ## run the benchmarks, one package at a time; BENCH selects some
	@set -e; for dir in $(call dirs_with,^func Benchmark); do \
		echo "bench $$dir"; \
		go test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 -timeout 60m $$dir; \
	done
	@for run in hack/bench/run hack/bench; do \
		if [ -f $$run ] && [ -x $$run ]; then echo "bench $$run"; exec $$run; fi; \
	done

fuzz: ## run every fuzz target for FUZZTIME each
	@grep -rnoE --include='*_test.go' --exclude-dir=testdata '^func Fuzz[A-Za-z0-9_]*' . | sort | \
	while IFS=: read -r file line name; do \
		name=$${name#func }; \
		echo "fuzz $${file%/*} $$name $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$${file%/*}" </dev/null || exit 1; \
	done

soak: testsum ## repeat the long tests (they read BYWASH_SOAK) and the fuzz targets for DURATION
	@echo '$(DURATION)' | grep -qE '^([0-9]+h)?([0-9]+m)?([0-9]+s)?$$' && [ -n '$(DURATION)' ] || \
		{ echo "DURATION=$(DURATION): want hours, minutes or seconds, such as 1h, 90m or 30s" >&2; exit 2; }
	@set -e; \
	seconds=$$(( $$(echo '$(DURATION)' | sed 's/h/*3600+/; s/m/*60+/; s/s/+/')0 )); \
	end=$$(( $$(date +%s) + seconds )); round=1; \
	while :; do \
		echo "soak round $$round"; \
		BYWASH_SOAK=$(DURATION) $(TESTSUM) soak: -p 1 -count=1 -timeout $$(( 2 * seconds + 1800 ))s \
			$(foreach d,driver shm afxdp verbs/internal qnix kmod session test,$(if $(wildcard $(d)),./$(d)/...)); \
		$(MAKE) --no-print-directory fuzz FUZZTIME=1m; \
		[ $$(date +%s) -lt $$end ] || break; \
		round=$$(( round + 1 )); \
	done; \
	echo "soak: $$round rounds passed"

peers: build ## measure Open MPI, MPICH, UCX and libfabric beside bywash
	@hack/peers/run

clean: ## remove what make built
	@rm -rf bin
