#!/usr/bin/env bash
# Ends what a test run started when the run itself is gone, however it ended. Reads one line for each thing to watch:
#   process PID         killed, if it is still the process that it was when it was announced
#   controlplane DIR    stopped with down.sh
# and acts at the end of its input, which comes when the test run's process ends.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trap '' INT TERM HUP
processes=() planes=()
started() { sed 's/.*) //' "/proc/$1/stat" 2> /dev/null | cut -d' ' -f20; }
while read -r verb argument; do
  case $verb in
    process) processes+=("$argument $(started "$argument")") ;;
    controlplane) planes+=("$argument") ;;
  esac
done
for entry in "${processes[@]}"; do
  read -r pid start <<< "$entry"
  [ -n "$start" ] && [ "$(started "$pid")" = "$start" ] && kill -KILL "$pid" 2> /dev/null
done
for plane in "${planes[@]}"; do
  [ -f "$plane/procs" ] && "$here/../controlplane/down.sh" "$plane"
done
exit 0
