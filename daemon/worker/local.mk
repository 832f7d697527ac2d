# daemon/worker
