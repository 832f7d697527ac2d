# client
EXTRA_DIST += examples/mnist/job.yaml
