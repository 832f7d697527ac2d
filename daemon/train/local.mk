# daemon/train
