# shellcheck shell=bash
# Sourced by the scripts beside it: where the programs of the control plane are.
#
# KUBEBUILDER_ASSETS   a folder that has etcd, kube-apiserver and kubectl already (and maybe kube-controller-manager):
#                      what is there is used and not built
# CP_BIN               where built programs are cached, outside the repository, so that every clone shares them
cp_bin=${CP_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/opamp-operator/controlplane}

# Prints the path of a program; fails when it is neither given nor built.
binary() { # name
  local folder
  for folder in ${KUBEBUILDER_ASSETS:+"$KUBEBUILDER_ASSETS"} "$cp_bin"; do
    if [ -x "$folder/$1" ]; then echo "$folder/$1"; return; fi
  done
  echo "no $1 in $cp_bin; run tests/controlplane/build.sh, or set KUBEBUILDER_ASSETS" >&2
  return 1
}
