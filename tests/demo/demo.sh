#!/usr/bin/env bash
# Shows what the operator does, step by step, and checks that each step shows what it should.
#   ONCE=1             exit after the last step: 0 if every step did, else 1; otherwise it runs on until Ctrl-C
#   CLUSTER=context    use the cluster of this kubeconfig context instead of a local control plane
#   OPAMP_OPERATOR_BIN the operator to show, instead of one that is built here
# It leaves nothing behind: processes, files and, in a cluster of yours, objects are removed at the end.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
work=$(mktemp -d "${TMPDIR:-/tmp}/opamp-demo.XXXXXX")
operator_pid='' agents_pid='' plane='' touched_cluster=''

bold='' dim='' green='' red='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'; fi

number=0
step() { # title, explanation
  number=$((number + 1))
  printf '\n%s%d. %s%s\n' "$bold" "$number" "$1" "$plain"
  [ $# -lt 2 ] || fold -s -w 96 <<< "$2" | sed -E 's/^/   /; s/ +$//'
}
good() { printf '   %s✓ %s%s\n' "$green" "$1" "$plain"; }
fail() {
  printf '   %s✗ %s%s\n' "$red" "$1" "$plain" >&2
  if [ -s "$work/operator.log" ]; then
    printf '   The last lines of the operator:\n' >&2
    tail -n 15 "$work/operator.log" >&2
  fi
  exit 1
}
show() { # command…: prints it, and at most eight lines of what it prints
  printf '   %s$ %s%s\n' "$dim" "${*/#$KUBECTL/kubectl}" "$plain"
  "$@" > "$work/shown" 2>&1 || true
  sed -n '1,8s/^/     /p' "$work/shown"
  local more=$(($(wc -l < "$work/shown") - 8))
  [ $more -le 0 ] || printf '     … and %d more\n' "$more"
}
# Waits until a command succeeds; what it printed last is told when it never does.
expect() { # what, seconds, command…
  local what=$1 end=$((SECONDS + $2)) seen
  shift 2
  until seen=$("$@" 2>&1); do
    [ -z "$operator_pid" ] || kill -0 "$operator_pid" 2> /dev/null || fail "the operator ended"
    [ $SECONDS -lt $end ] || fail "$what (last seen: ${seen:-nothing})"
    sleep 0.3
  done
  good "$what"
}
k() { "$KUBECTL" -n telemetry "$@"; }
field_is() { # object, jsonpath, value
  local value
  value=$(k get "$1" -o "jsonpath=$2")
  echo "$value"
  [ "$value" = "$3" ]
}
# The agents' program takes commands and answers each with one line of JSON.
ask_agents() { # command
  local reply
  echo "$1" >&7
  while IFS= read -r -t 60 reply <&8; do
    case $reply in *'"reply"'*) break ;; esac
  done
  echo "$reply"
  case $reply in *'"ok":true'*) ;; *) return 1 ;; esac
}

finish() {
  local code=$?
  trap '' INT TERM
  [ $code = 0 ] || [ $code = 130 ] || printf '\n%sThe demo failed.%s\n' "$red" "$plain" >&2
  printf '\nCleaning up …\n'
  exec 7>&- 2> /dev/null || true # the end of their input stops the agents
  for pid in $agents_pid $operator_pid; do
    kill -TERM "$pid" 2> /dev/null || continue
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2> /dev/null || true
    wait "$pid" 2> /dev/null || true
  done
  if [ -n "$touched_cluster" ]; then
    "$KUBECTL" delete --ignore-not-found -f crds > /dev/null || true # and with them every fleet and agent
    "$KUBECTL" delete --ignore-not-found namespace telemetry opamp-system > /dev/null || true
  fi
  [ -z "$plane" ] || tests/controlplane/down.sh "$plane" || true
  rm -rf "$work"
  exit $code
}
trap finish EXIT
# Before the last step an interrupt is a failure, after it the expected end.
all_shown=''
trap 'exit $([ -n "$all_shown" ] && echo 0 || echo 130)' INT TERM

own_control_plane() {
  step "Start a local control plane" "etcd, kube-apiserver and kube-controller-manager, as processes of yours on loopback ports."
  tests/controlplane/build.sh
  local exports
  exports=$(tests/controlplane/up.sh)
  eval "$exports"
  plane=$CP_DIR
  good "an API server at $CP_SERVER"
}

cluster_of_the_user() {
  step "Use the cluster of context $CLUSTER"
  KUBECTL=$(command -v kubectl) || fail "kubectl is not in PATH"
  "$KUBECTL" --context "$CLUSTER" config view --raw --minify --flatten > "$work/kubeconfig" || fail "there is no context $CLUSTER"
  chmod 600 "$work/kubeconfig"
  export KUBECONFIG=$work/kubeconfig KUBECTL
  local there
  there=$("$KUBECTL" get crds -o name) || fail "the cluster does not answer"
  if grep -q '\.opamp\.dev$' <<< "$there"; then
    fail "the definitions of opamp.dev are installed there already; the demo would change, and at its end delete, what is yours"
  fi
  for namespace in telemetry opamp-system; do
    [ -z "$("$KUBECTL" get namespace "$namespace" --ignore-not-found -o name)" ] || fail "the namespace $namespace is there already, and the demo would delete it at its end"
  done
  touched_cluster=1
  good "nothing of the operator's is there yet"
}

build() {
  step "Build the operator and the agents" "The first time this takes some minutes."
  operator=${OPAMP_OPERATOR_BIN:-}
  if [ -z "$operator" ]; then
    cargo build --locked --quiet --bin opamp-operator
    operator=${CARGO_TARGET_DIR:-target}/debug/opamp-operator
  fi
  local exports
  exports=$(tests/e2e/clients.sh agents)
  eval "$exports"
  good "$("$operator" version)"
}

free_port() { # of those below the range that outgoing connections take theirs from
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 9000))
    (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null || { echo $port; return; }
  done
  return 1
}

start_operator() {
  step "Install the definitions and start the operator" "It serves OpAMP to agents, and watches the cluster's resources."
  "$operator" crds | "$KUBECTL" apply --server-side -f - > /dev/null
  "$KUBECTL" wait --for=condition=Established --timeout=30s -f crds > /dev/null
  "$KUBECTL" create namespace opamp-system > /dev/null
  local admin
  listen=127.0.0.1:$(free_port) admin=127.0.0.1:$(free_port)
  "$operator" run --plaintext --listen "$listen" --admin-listen "$admin" --namespace opamp-system \
    --anonymous-namespaces telemetry --replica-name demo --log-format Text > "$work/operator.log" 2>&1 &
  operator_pid=$!
  expect "the operator is ready (process $operator_pid, OpAMP at $listen)" 60 ready "$admin"
  show "$KUBECTL" api-resources --api-group=opamp.dev
}
ready() { # address
  exec 3<> "/dev/tcp/${1/://}" || return 1
  printf 'GET /readyz HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n' >&3
  local status
  IFS= read -r -t 5 status <&3
  exec 3>&-
  [[ $status == *' 200 '* ]]
}

apply_samples() {
  step "Apply config/samples" "A fleet is to agents what a Deployment is to pods: it selects them and says what they run."
  show "$KUBECTL" apply --server-side -f config/samples
  expect "the fleet has its first revision" 30 field_is fleet/edge '{.status.conditions[?(@.type=="Ready")].status}' True
}

start_agents() {
  step "Start twenty agents" "Real OpAMP clients (opamp-go), half of them on Linux, half on Windows. Nobody told the cluster of them."
  mkfifo "$work/commands" "$work/replies"
  "$OPAMP_TEST_AGENTS" -endpoint "ws://$listen/v1/opamp" -count 20 -seed demo -heartbeat 5s \
    -identifying service.name=otelcol -identifying 'service.instance.id={uid}' -identifying service.version=0.140.0 \
    -non-identifying 'host.name=host-{index}' -non-identifying 'os.type=linux|windows' \
    -non-identifying deployment.environment=demo < "$work/commands" > "$work/replies" 2> "$work/agents.log" &
  agents_pid=$!
  exec 7> "$work/commands" 8< "$work/replies"
  expect "each shows up as an Agent" 30 field_is fleet/edge '{.status.agents.matched}' 20
  show "$KUBECTL" get agents -n telemetry
}

config_is_applied() {
  step "They are configured" "The fleet offers its RemoteConfigs: a base for all, one with host metrics for Linux, one rendered for each agent."
  expect "all twenty say that they applied it" 30 field_is fleet/edge '{.status.agents.upToDate}' 20
  ask_agents '{"do":"wait","for":{"applied":"*","running":"timeout: 5s"},"count":20,"timeout":"10s"}' > /dev/null ||
    fail "not every agent runs it"
  good "and so say the agents themselves"
  show "$KUBECTL" get fleets -n telemetry
  revision=$(k get fleet edge -o 'jsonpath={.status.currentRevision}')
}

change_reaches_them() {
  step "Change the configuration" "The batch processor shall wait 10 s instead of 5 s."
  k get remoteconfig base -o json | sed 's/timeout: 5s/timeout: 10s/' | k replace -f - > /dev/null
  ask_agents '{"do":"wait","for":{"applied":"*","running":"timeout: 10s"},"count":20,"timeout":"30s"}' > /dev/null ||
    fail "the change did not reach every agent in 30 s"
  good "all twenty run the new configuration"
  expect "and the fleet counts them" 30 field_is fleet/edge '{.status.agents.upToDate}' 20
  show "$KUBECTL" get fleets -n telemetry
  local changed
  changed=$(k get fleet edge -o 'jsonpath={.status.currentRevision}')
  [ "$changed" != "$revision" ] || fail "the revision should have changed"
  good "the revision went from $revision to $changed"
  revision=$changed
}

break_it() {
  step "Break it" "Somebody forgets a bracket: the file is no YAML any more."
  k get remoteconfig base -o json | sed 's/exporters: \[debug\]/exporters: [debug/' | k replace -f - > /dev/null
  expect "the RemoteConfig says what is wrong, and where" 15 \
    field_is remoteconfig/base '{.status.conditions[?(@.type=="Stalled")].reason}' InvalidYaml
  show "$KUBECTL" get remoteconfig base -n telemetry -o 'jsonpath={.status.conditions[?(@.type=="Stalled")].message}{"\n"}'
  expect "and the fleet that it waits for that" 15 field_is fleet/edge '{.status.conditions[?(@.type=="Ready")].status}' False
  show "$KUBECTL" get fleets -n telemetry
  field_is fleet/edge '{.status.currentRevision}' "$revision" > /dev/null || fail "the last good revision should have stayed"
  good "the last good revision $revision stays"
  ask_agents '{"do":"wait","for":{"running":"exporters: [debug]"},"count":20,"timeout":"5s"}' > /dev/null ||
    fail "an agent lost its configuration"
  if ask_agents '{"do":"wait","for":{"running":"exporters: [debug\n"},"count":1,"timeout":"2s"}' > /dev/null; then
    fail "an agent was offered the broken one"
  fi
  good "no agent was offered the broken one"
}

mend_it() {
  step "Mend it"
  k get remoteconfig base -o json | sed 's/exporters: \[debug\\n/exporters: [debug]\\n/' | k replace -f - > /dev/null
  expect "the fleet is ready again" 15 field_is fleet/edge '{.status.conditions[?(@.type=="Ready")].status}' True
  expect "all twenty are up to date" 15 field_is fleet/edge '{.status.agents.upToDate}' 20
}

fall_ill() {
  step "An agent falls ill" "It reports that its disk is full."
  ask_agents '{"do":"health","agents":[3],"healthy":false,"error":"disk full"}' > /dev/null || fail "the agent does not answer"
  expect "the fleet counts nineteen healthy ones" 30 field_is fleet/edge '{.status.agents.healthy}' 19
  local uid
  uid=$(ask_agents '{"do":"uids","agents":[3]}' | sed -E 's/.*"uids":\["([^"]*)".*/\1/')
  show "$KUBECTL" get agent "$uid" -n telemetry
  show "$KUBECTL" get agent "$uid" -n telemetry -o 'jsonpath={.status.health.lastError}{"\n"}'
  show "$KUBECTL" get fleets -n telemetry
}

play_on() {
  all_shown=1
  printf '\n%sEvery step showed what it should.%s\n' "$green" "$plain"
  [ "${ONCE:-}" != 1 ] || return 0
  cat <<TEXT

It goes on running. In another terminal:

  export KUBECONFIG=$KUBECONFIG
TEXT
  command -v kubectl > /dev/null || echo "  alias kubectl=$KUBECTL"
  cat <<TEXT
  kubectl get fleets,agents -n telemetry
  kubectl get agents -n telemetry -o wide
  kubectl describe fleet edge -n telemetry
  kubectl edit remoteconfig base -n telemetry
  kubectl explain agentfleet.spec

The operator logs to $work/operator.log. Ctrl-C ends it all and leaves nothing behind.
TEXT
  wait "$operator_pid" || true
  fail "the operator ended"
}

if [ -n "${CLUSTER:-}" ]; then cluster_of_the_user; else own_control_plane; fi
build
start_operator
apply_samples
start_agents
config_is_applied
change_reaches_them
break_it
mend_it
fall_ill
play_on
