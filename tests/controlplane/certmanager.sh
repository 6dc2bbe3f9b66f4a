#!/usr/bin/env bash
# Provides cert-manager's own controllers of CA issuers as one program, and prints where it and the custom resource
# definitions that it needs are, as `export` lines:
#   eval "$(./certmanager.sh)"              CERT_MANAGER, CERT_MANAGER_CRDS (a folder)
#   kubectl apply --server-side -f "$CERT_MANAGER_CRDS"
#   "$CERT_MANAGER" --kubeconfig "$KUBECONFIG"
# Built once for each state of its sources, into the cache (binaries.sh says where that is).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/controlplane/binaries.sh
. "$here/binaries.sh"
[ $# = 0 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$here/certmanager"

module=github.com/cert-manager/cert-manager
# What the controllers watch; the definitions of Certificates and of ACME are half a megabyte that nobody looks at.
kinds=(certificaterequests clusterissuers issuers)

key=$(cat go.mod go.sum main.go "$here/certmanager.sh" | sha256sum | cut -c1-16)
folder=$cp_bin/certmanager-$key
printed() {
  echo "export CERT_MANAGER='$folder/certmanager'"
  echo "export CERT_MANAGER_CRDS='$folder/crds'"
}
if [ -d "$folder" ]; then printed; exit; fi
command -v go > /dev/null || { echo "certmanager.sh: no go in PATH; tests/tools.sh says how to get it" >&2; exit 1; }

mkdir -p "$cp_bin"
# Two test runs that start together build once: the second waits here and finds it done.
exec 9> "$cp_bin/.certmanager.lock"
flock 9
if [ -d "$folder" ]; then printed; exit; fi
version=$(go list -mod=readonly -m -f '{{.Version}}' $module)
echo "Building cert-manager's CA issuer ($version) from Go modules into $folder." >&2
echo "This happens once and takes four CPU-minutes (1.2 GB of build cache)." >&2
start=$SECONDS
# Made aside and renamed, so that an aborted build leaves nothing that looks complete.
rm -rf "$folder.new"
mkdir -p "$folder.new/crds"
CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "-s -w" -o "$folder.new/certmanager" . >&2
definitions=$(go list -mod=readonly -m -f '{{.Dir}}' $module)/deploy/crds
for kind in "${kinds[@]}"; do
  # The module cache is read-only, and so would be a copy of its files.
  install -m 644 "$definitions/cert-manager.io_$kind.yaml" "$folder.new/crds/"
done
mv "$folder.new" "$folder"
echo "  certmanager: $((SECONDS - start)) s, $(du -m "$folder/certmanager" | cut -f1) MiB" >&2
printed
