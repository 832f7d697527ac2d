EXTRA_DIST += %D%/attention.py %D%/gpt.py %D%/gpt.sh %D%/gpt_torch.py %D%/measure.py %D%/memory.py \
  %D%/memory.sh %D%/mnist.py %D%/mnist.sh %D%/run.sh %D%/sequence.py \
  %D%/strategies.py %D%/strategies.sh
