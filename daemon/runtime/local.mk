# daemon/runtime
