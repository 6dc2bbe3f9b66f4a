#!/usr/bin/env bash
# Says which tools are missing for building, testing and the demo, and how to get them. Exit code 1 if any is.
#   tests/tools.sh         everything
#   tests/tools.sh demo    only what `make demo` needs
set -uo pipefail
missing=0

lacks() { # tool, how to get it
  missing=1
  printf '%-10s is missing: %s\n' "$1" "$2" >&2
}
need() { # command, how to get it
  command -v "$1" > /dev/null || lacks "$1" "$2"
}

need cargo "install rustup from https://rustup.rs; rust-toolchain.toml then picks the version"
need cc "apt-get install build-essential (Debian, Ubuntu), dnf install gcc (Fedora), xcode-select --install (macOS)"
need openssl "apt-get install openssl"
for tool in flock setsid; do need "$tool" "apt-get install util-linux"; done
# Go builds the control plane and the agents; what go.mod asks for is the least version.
if ! command -v go > /dev/null; then
  lacks go "1.26 or later from https://go.dev/dl"
elif ! printf '%s\n' go1.26 "$(go env GOVERSION)" | sort -V -C; then
  lacks go "1.26 or later from https://go.dev/dl (this is $(go env GOVERSION))"
fi
if [ "${1:-}" != demo ]; then
  if ! command -v python3 > /dev/null; then
    lacks python3 "apt-get install python3 python3-venv"
  elif ! python3 -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; then
    lacks python3 "3.10 or later with venv: apt-get install python3 python3-venv"
  fi
  if ! command -v node > /dev/null || ! command -v npm > /dev/null; then
    lacks node "20.6 or later with npm, from https://nodejs.org"
  elif ! node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 6) ? 0 : 1)'; then
    lacks node "20.6 or later from https://nodejs.org (this is $(node --version))"
  fi
fi
[ "$missing" != 0 ] || echo "all tools are there"
exit "$missing"
