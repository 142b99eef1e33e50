#!/usr/bin/env bash
# Has the files of deploy/ read by the tools that will read them. A tool that is
# not installed is skipped, loudly; with CI set, systemd-analyze, promtool and
# compose must be there.
# Exit status: 0 all that could be checked is sound, 1 something is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The unit's exposure, from 0 to 100, as systemd-analyze security counts it.
# What it is left with is listed in the unit's last comment.
max_exposure=40

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
passed=0
skipped=0

# check WHAT COMMAND... runs a command and shows its output only if it fails.
check() {
	local what=$1
	shift
	if "$@" >"$work/out" 2>&1; then
		printf 'deploy: ok: %s\n' "$what"
		passed=$((passed + 1))
	else
		printf 'deploy: FAILED: %s\n' "$what" >&2
		sed 's/^/    /' "$work/out" >&2
		failed=$((failed + 1))
	fi
}

# skip WHAT TOOL [required] says that nothing was checked.
skip() {
	printf 'deploy: NOT CHECKED: %s: %s is not installed\n' "$1" "$2" >&2
	skipped=$((skipped + 1))
	if [ "${3:-}" = required ] && [ -n "${CI:-}" ]; then failed=$((failed + 1)); fi
}

# A unit whose program is not installed does not verify, so the copy that is
# looked at names one that is.
unit=$work/alineod.service
sed "s|^ExecStart=/usr/local/bin/alineod|ExecStart=$(command -v true)|" deploy/systemd/alineod.service >"$unit"

verify_unit() { # warnings count: they are unknown directives and bad values
	local out
	out=$(systemd-analyze verify --recursive-errors=no --man=no "$unit" 2>&1) || { echo "$out"; return 1; }
	# About other units of this machine it may say what it likes.
	! grep -F "$(basename "$unit")" <<<"$out"
}

if command -v systemd-analyze >/dev/null; then
	check "systemd/alineod.service" verify_unit
	check "systemd/alineod.service: exposure at most $max_exposure of 100" \
		systemd-analyze security --offline=true --threshold=$max_exposure "$unit"
else
	skip "systemd/alineod.service" systemd-analyze required
fi

if command -v promtool >/dev/null; then
	check "prometheus/prometheus.yml and its rules" promtool check config deploy/prometheus/prometheus.yml
	check "prometheus/alerts.yml fires when it should" promtool test rules deploy/prometheus/alerts_test.yml
else
	skip "prometheus/" promtool required
fi

if docker compose version >/dev/null 2>&1; then
	check "compose.yaml" docker compose -f deploy/compose.yaml config --quiet
elif command -v docker-compose >/dev/null; then
	check "compose.yaml" docker-compose -f deploy/compose.yaml config --quiet
else
	skip "compose.yaml" "docker compose" required
fi

if docker buildx version >/dev/null 2>&1; then
	check "Dockerfile" docker buildx build --check .
else
	skip "Dockerfile" "docker buildx"
fi

printf 'deploy: %d sound, %d not, %d not checked\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
