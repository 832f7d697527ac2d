#!/usr/bin/env python3
"""The lists in debian/*.install against what `make install` installs: every file is in exactly one package, and every
line of a list names something. dh_missing and dh_install find the same when packages are built, which takes minutes."""

import collections
import glob
import os
import subprocess
import sys
import tempfile

SOURCE = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.environ.get("builddir", ".")
TRIPLET = "lib/x86_64-linux-gnu"  # any: the lists have a pattern


def install(stage):
    """What debian/rules installs, without debhelper: dh_auto_configure sets these directories."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(["make", "-C", BUILD, "install", f"DESTDIR={stage}", "prefix=/usr", f"libdir=/usr/{TRIPLET}",
                           "sysconfdir=/etc", "systemdunitdir=/lib/systemd/system"], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        sys.exit(f"make install failed:\n{made.stdout[-2000:]}")
    return {os.path.relpath(os.path.join(directory, name), stage)
            for directory, _, names in os.walk(stage) for name in names}


def below(top, pattern):
    """The files, relative to top, that dh_install takes for a pattern: matched ones, and all in matched directories."""
    for path in glob.glob(os.path.join(glob.escape(top), pattern)):
        inside = [os.path.join(directory, name) for directory, _, names in os.walk(path) for name in names]
        yield from (os.path.relpath(file, top) for file in (inside if os.path.isdir(path) else [path]))


def main():
    errors = []
    packages = collections.defaultdict(set)
    with tempfile.TemporaryDirectory(prefix="fsdpd-test-") as stage:
        installed = install(stage)
        for path in sorted(glob.glob(os.path.join(SOURCE, "debian/*.install"))):
            name = os.path.basename(path)
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    pattern, *target = line.split()
                    files = set(below(stage, pattern))
                    for file in files:
                        packages[file].add(name)
                    # dh_install looks in the sources for what is not installed.
                    if not files and not (target and os.path.isfile(os.path.join(SOURCE, pattern))) and not (
                            name == "fsdpd-cuda.install" and not os.path.exists(os.path.join(BUILD, "fsdpd-cuda.so"))):
                        errors.append(f"debian/{name}:{number}: make install installs no {pattern}")
    errors += [f"{file}: make install installs it, but it is in no debian/*.install"
               for file in sorted(installed - packages.keys())]
    errors += [f"{file}: in more than one package: {', '.join(sorted(names))}"
               for file, names in sorted(packages.items()) if len(names) > 1]
    print(*errors, f"{len(installed)} installed files", sep="\n")
    return 1 if errors or not installed else 0


sys.exit(main())
