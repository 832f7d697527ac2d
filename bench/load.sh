#!/usr/bin/env bash
# Puts a coordinator under load: simulated workers that attach over the real socket and speak the real
# protocol, jobs that are queued and run on them, and watchers. Prints the latency of submissions, of
# reports to watchers, of list and of status, and the coordinator's memory and share of a core.
# Fails if a job is lost or runs twice, or if a watcher misses an event.
# With --pages N: the same for N browsers with the page of http.listen open while 10,000 jobs wait and one has reported
# 1,000,000 steps (--jobs, --history), and for slow and vanishing ones; fails if one is not served.
# usage: bench/load.sh [--pages N [--history N]] [--workers N] [--jobs N] [--watchers N] [--ranks N] [--seconds N] [--state-dir DIR]
set -euo pipefail
exec "$(dirname "$0")/run.sh" load.py "$@"
