"""Generates the messages and stubs of the API while the package is built; the rest is in pyproject.toml."""
import importlib.metadata
import os

import setuptools
from setuptools.command.build_py import build_py

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../proto")
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


def at_least(package):
    """What is generated needs at least the version that generated it."""
    return f"{package}>={importlib.metadata.version(package)}"


setuptools.setup(cmdclass={"build_py": Build},
                 install_requires=[at_least("grpcio"), at_least("protobuf"), "googleapis-common-protos", "numpy",
                                   "pyyaml"])
