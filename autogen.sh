#!/bin/sh
# Makes configure; needed once after a clone.
set -e
cd "$(dirname "$0")"
mkdir -p m4 build-aux
exec autoreconf --install --force --warnings=all,no-portability,no-obsolete
