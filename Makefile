# What a developer does here. `make` alone lists it.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The operator as the end-to-end tests and the demo run it: optimised, quicker to build than a release.
E2E_OPERATOR := $(or $(CARGO_TARGET_DIR),target)/e2e/opamp-operator

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: tools
tools: ## Say which tools are missing, and how to get them
	@tests/tools.sh

.PHONY: build
build: ## Build the operator, unoptimised
	cargo build --locked

.PHONY: demo
demo: ## Show it: control plane, operator, twenty agents (ONCE=1: exit after the last step; CLUSTER=<context>: there)
	@tests/tools.sh demo
	@ONCE='$(ONCE)' CLUSTER='$(CLUSTER)' tests/demo/demo.sh

# Cheap checks first: what fails early costs little.
.PHONY: test
test: tools fmt clippy generated unit doc agents integration e2e cluster-wide ## Everything: format, lints, generated files, all tests

.PHONY: fmt
fmt: ## Check the format
	cargo fmt --check
	@unformatted=$$(gofmt -l tests/e2e/agents tests/controlplane/certmanager); \
	  [ -z "$$unformatted" ] || { echo "not formatted by gofmt: $$unformatted" >&2; exit 1; }

.PHONY: clippy
clippy: ## Lint
	cargo clippy --locked --all-targets -- -D warnings

.PHONY: generated
generated: ## Check that crds/ and the reference are what the code says
	cargo test --locked --lib api::tests::generated

.PHONY: generate
generate: ## Write crds/ and the reference anew
	UPDATE_GENERATED=1 cargo test --locked --lib api::tests::generated

# The same cases in every run, so that a failure is everybody's. `make unit PROPTEST_RNG_SEED=$$RANDOM` looks further.
export PROPTEST_RNG_SEED ?= 20261129

.PHONY: unit
unit: ## Unit and property tests
	cargo test --locked --lib --bins

.PHONY: doc
doc: ## Build the documentation of the code; a warning is an error
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items

.PHONY: agents
agents: ## Vet and test the Go agents against opamp-go's own server
	cd tests/e2e/agents && go vet ./... && go test -timeout 2m ./...

.PHONY: controlplane
controlplane: ## Build etcd, kube-apiserver and their kin, unless they are there already
	@tests/controlplane/build.sh

.PHONY: integration
integration: controlplane ## Tests against a real API server (OPAMP_TEST_KUBECONFIG: that one)
	cargo test --locked --test integration

.PHONY: e2e
e2e: controlplane $(E2E_OPERATOR) ## Real agents against the whole; about half an hour (TEST=name: only these; ROLES=cluster-wide: with those)
	clients=$$(tests/e2e/clients.sh) && eval "$$clients" && \
	  OPAMP_TEST_ROLES='$(ROLES)' OPAMP_OPERATOR_BIN='$(abspath $(E2E_OPERATOR))' cargo test --locked --test e2e -- --nocapture $(TEST)

# Among them they use every right but two: to delete Agents, and to get a fleet.
CLUSTER_WIDE := $(addsuffix ::,effective_configs enrollment issuers remote_configs replicas revocations rotation secrets service_accounts)

.PHONY: cluster-wide
cluster-wide: ## Some of these once more, with the roles of an operator that serves all namespaces
	@$(MAKE) e2e ROLES=cluster-wide TEST='$(CLUSTER_WIDE)'

# Always asked for: cargo knows best whether there is anything to do.
.PHONY: $(E2E_OPERATOR)
$(E2E_OPERATOR):
	cargo build --locked --profile e2e --bin opamp-operator

.PHONY: deny
deny: ## Check licences, sources and advisories of dependencies (needs cargo-deny)
	@command -v cargo-deny > /dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny --locked check
