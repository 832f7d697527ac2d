# daemon/checkpoint
