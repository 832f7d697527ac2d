EXTRA_DIST += %D%/measure.py %D%/mnist.py %D%/mnist.sh %D%/run.sh %D%/strategies.py %D%/strategies.sh
