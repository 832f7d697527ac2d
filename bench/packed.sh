#!/usr/bin/env bash
# Measures how the time of attention falls with the length of the documents that a row holds, beside what
# arithmetic says; prints a table in Markdown, and exits with 1 if it falls less.
# usage: bench/packed.sh [--rounds N] [--seconds S] [--time TOKENS]
set -euo pipefail
exec "$(dirname "$0")/run.sh" packed.py "$@"
