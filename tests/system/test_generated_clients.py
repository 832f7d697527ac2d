#!/usr/bin/env python3
"""Clients in Go and Ruby, whose stubs protoc makes from proto/ alone, train MNIST (examples/clients). It needs Go with
google.golang.org/grpc and google.golang.org/protobuf below $GOPATH, Ruby with its gRPC, and both generators
(make check-live); without them it fails."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness

CLIENTS = os.path.join(harness.SOURCE, "examples/clients")
MNIST = os.path.join(harness.SOURCE, "examples/mnist")
PROTO = os.path.join(harness.SOURCE, "proto")


class GeneratedClients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        cls.daemon = harness.Daemon(data=harness.find_mnist())
        cls.addClassCleanup(cls.daemon.close)

    def generate(self, program, option, directory):
        names = sorted(os.path.relpath(path, PROTO) for path in glob.glob(f"{PROTO}/fsdpd/v1/*.proto"))
        os.makedirs(directory)
        subprocess.run([program, *(f"--{kind}_out={os.path.abspath(directory)}" for kind in option),
                        *(name for name in names if not name.endswith("worker.proto"))], cwd=PROTO, check=True)

    def train(self, *client, **environment):
        out = os.path.join(self.directory, os.path.basename(client[0]) + ".safetensors")
        done = subprocess.run([*client, self.daemon.address, f"{MNIST}/job.yaml", f"{MNIST}/net.yaml", out,
                               f"data.dir={self.daemon.data}", "train.epochs=1", "train.log_interval=100"],
                              stdout=subprocess.PIPE, text=True, timeout=harness.PATIENCE * 10, check=True,
                              env=dict(os.environ, **environment))
        accuracy = float(re.search(r"epoch 1 accuracy ([\d.]+) %", done.stdout)[1])
        self.assertGreater(accuracy, 95)  # of the example: 98.5 on MNIST
        print(f"{os.path.basename(client[0])}: {accuracy} %", end=" ", flush=True)
        job = re.search(r"^submitted (\S+)", done.stdout)[1]
        other = out + ".pulled"
        self.daemon.ctl("pull", job, "-o", other, check=True)
        with open(out, "rb") as mine, open(other, "rb") as pulled:
            self.assertEqual(mine.read(), pulled.read())

    def test_go(self):
        stubs = os.path.join(self.directory, "go")
        self.generate("protoc", ("go", "go-grpc"), os.path.join(stubs, "src"))
        path = subprocess.run(["go", "env", "GOPATH"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        program = os.path.join(self.directory, "train")
        subprocess.run(["go", "build", "-o", program, f"{CLIENTS}/train.go"], check=True,
                       env=dict(os.environ, GO111MODULE="off", GOPATH=f"{path}:{stubs}"))
        self.train(program)

    def test_ruby(self):
        stubs = os.path.join(self.directory, "ruby")
        self.generate("grpc_tools_ruby_protoc", ("ruby", "grpc"), stubs)
        self.train("ruby", f"{CLIENTS}/train.rb", RUBYLIB=stubs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
