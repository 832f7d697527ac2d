#!/usr/bin/env bash
# A coordinator under load: simulated workers that attach over the real socket and speak the real
# protocol, jobs that are queued and run on them, watchers. Prints how long submissions, reports on
# their way to a watcher, list and status take, and the coordinator's memory and share of a core.
# Fails if a job is lost, or run twice, or a watcher misses anything.
# usage: bench/load.sh [--workers N] [--jobs N] [--watchers N] [--ranks N] [--seconds N] [--state-dir DIR]
set -euo pipefail
exec "$(dirname "$0")/run.sh" load.py "$@"
