# What a person or a machine does with this tree. See `make help`.

# One set of flags for every build and test: another value of CGO_ENABLED
# would rebuild everything, the SQLite in Go included, which takes a minute.
export CGO_ENABLED := 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Packages that are built and tested at once, and how long one may take.
P ?= 2
TEST_TIMEOUT ?= 15m

# Where goroutines meet and a run under the race detector takes seconds.
RACE_ROOMS := api bridge checkpoint client config ledger live recovery runtime/local sdnotify setup spec swarm telemetry
RACE_PACKAGES = $(foreach r,$(RACE_ROOMS),$(if $(wildcard internal/$(r)/*_test.go),./internal/$(r))) ./alineo ./test/e2e

STATICCHECK ?= $(shell command -v staticcheck || echo go run honnef.co/go/tools/cmd/staticcheck@v0.8.2)

.PHONY: all build test images unit failpoints race demo lint deploy-check bench clean help
all: build

## build: the static binary bin/alineod
build:
	go build -ldflags '$(LDFLAGS)' -o bin/alineod ./cmd/alineod

## test: everything; on Docker too where an engine answers
test: build images unit failpoints race

## images: the images of the tests, where a Docker Engine answers
images:
	@if docker version >/dev/null 2>&1; then test/images/build.sh; \
	elif [ "$$ALINEOD_TEST_DOCKER" = require ]; then echo "make: no Docker Engine answers, and ALINEOD_TEST_DOCKER=require" >&2; exit 1; \
	else echo "make: NOT TESTED on Docker: no Docker Engine answers" >&2; fi

## unit: the tests, without the race detector
unit:
	go test -p $(P) -timeout $(TEST_TIMEOUT) ./...

## failpoints: the crash points inside single rooms; test/e2e has those of the whole
failpoints:
	go test -tags failpoint -p $(P) -timeout $(TEST_TIMEOUT) -run 'TestKilledAtFailpoints|TestCrash$$|TestFailpoints' ./internal/ledger ./internal/checkpoint ./internal/bridge

## race: the rooms where goroutines meet, and a daemon that is killed, under the race detector
race:
	@if command -v gcc >/dev/null; then set -x; CGO_ENABLED=1 go test -race -short -p $(P) -timeout $(TEST_TIMEOUT) $(RACE_PACKAGES); \
	else echo "make: NOT TESTED for races: the race detector needs gcc" >&2; [ -z "$$CI" ]; fi

## demo: five agents, a killed daemon, a destroyed sandbox; see what holds
demo: build
	bin/alineod demo

## lint: gofmt, go vet, staticcheck, and the files of deploy/
lint: deploy-check
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted by gofmt:" $$unformatted >&2; exit 1; }
	go vet ./...
	go vet -tags failpoint ./...
	$(STATICCHECK) ./...

## deploy-check: what deploy/ ships, by the tools that will read it
deploy-check:
	deploy/check.sh

## bench: the benchmarks
bench:
	go test -run '^$$' -bench . -benchmem -p 1 ./...

clean:
	rm -rf bin dist

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)
