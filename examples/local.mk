# Installed beside what jobs refer to: the tutorial's network as a model file.
mnist_exampledir = $(pkgdatadir)/examples/mnist
dist_mnist_example_DATA = %D%/mnist/job.yaml %D%/mnist/net.yaml
EXTRA_DIST += %D%/mnist/SHA256SUMS
