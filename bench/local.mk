EXTRA_DIST += %D%/mnist.py %D%/mnist.sh
