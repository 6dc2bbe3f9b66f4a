#!/usr/bin/env bash
# Provides the real OpAMP clients and prints where they are, as `export` lines:
#   eval "$(tests/e2e/clients.sh)"         all: OPAMP_TEST_AGENTS, OPAMP_TEST_PYTHON, OPAMP_TEST_NODE
#   eval "$(tests/e2e/clients.sh agents)"  only what is named: agents, python, node
# Built and fetched once, outside the repository except for node_modules; made anew when a lock file changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/opamp-operator/clients
mkdir -p "$cache"
# Runs that start together make each client once.
exec 9> "$cache/.lock"
flock 9

say() { echo "clients.sh: $*" >&2; }
need() { command -v "$1" > /dev/null || { say "no $1 in PATH; tests/tools.sh says how to get it"; exit 1; }; }

provide_agents() {
  need go
  # Go's own build cache makes this a matter of a second when nothing changed.
  (cd "$here/agents" && CGO_ENABLED=0 go build -mod=readonly -trimpath -o "$cache/agents.new" .) >&2
  cmp -s "$cache/agents.new" "$cache/agents" || mv "$cache/agents.new" "$cache/agents"
  rm -f "$cache/agents.new"
  echo "export OPAMP_TEST_AGENTS='$cache/agents'"
}

provide_python() {
  need python3
  local stamp
  stamp=$({ cat "$here/python/requirements.txt"; python3 --version; } | sha256sum | cut -d' ' -f1)
  if [ "$(cat "$cache/python.stamp" 2> /dev/null)" != "$stamp" ]; then
    say "installing the Python client into $cache/python (about ten seconds)"
    rm -rf "$cache/python"
    python3 -m venv "$cache/python" >&2
    "$cache/python/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/python/requirements.txt" >&2
    echo "$stamp" > "$cache/python.stamp"
  fi
  echo "export OPAMP_TEST_PYTHON='$cache/python/bin/python $here/python/agent.py'"
}

provide_node() {
  need node
  need npm
  local stamp
  stamp=$({ cat "$here/node/package-lock.json"; node --version; } | sha256sum | cut -d' ' -f1)
  if [ "$(cat "$here/node/node_modules/.stamp" 2> /dev/null)" != "$stamp" ]; then
    say "installing the Node.js client into tests/e2e/node/node_modules (a few seconds)"
    (cd "$here/node" && npm ci --silent) >&2
    echo "$stamp" > "$here/node/node_modules/.stamp"
  fi
  echo "export OPAMP_TEST_NODE='node $here/node/agent.js'"
}

[ $# -gt 0 ] || set -- agents python node
for client; do
  case $client in
    agents | python | node) "provide_$client" ;;
    *) say "no client $client"; exit 2 ;;
  esac
done
