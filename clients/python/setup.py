"""Generates the messages and stubs of the API while the package is built; the rest is in pyproject.toml."""
import importlib.metadata
import os
import pathlib

import setuptools
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = next(path for path in (os.path.join(HERE, "proto"), os.path.join(HERE, "../../proto")) if os.path.exists(path))
# All but worker.proto, which is not for users.
FILES = [f"fsdpd/v1/{name}.proto" for name in ("control", "diagnosis", "event", "job", "log", "plan", "spec", "trace")]


class Build(build_py):
    def run(self):
        super().run()
        import grpc_tools
        from grpc_tools import protoc
        included = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
        result = protoc.main(["protoc", f"-I{PROTO}", f"-I{included}", f"--python_out={self.build_lib}",
                              f"--pyi_out={self.build_lib}", f"--grpc_python_out={self.build_lib}",
                              *FILES])
        if result != 0:
            raise SystemExit(f"protoc failed on fsdpd/v1 in {PROTO}")


class Source(sdist):
    """With the API's files, which lie outside of this directory in fsdpd's tree."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for path in sorted(pathlib.Path(PROTO).rglob("*.proto")):
            copy = os.path.join(base_dir, "proto", path.relative_to(PROTO))
            self.mkpath(os.path.dirname(copy))
            self.copy_file(str(path), copy)


def at_least(package, generator):
    """What is generated needs at least the version that generated it."""
    return f"{package}>={importlib.metadata.version(generator)}"


setuptools.setup(cmdclass={"build_py": Build, "sdist": Source},
                 install_requires=[at_least("grpcio", "grpcio-tools"), at_least("protobuf", "protobuf"),
                                   "googleapis-common-protos", "numpy", "pyyaml"])
