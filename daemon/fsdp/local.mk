# daemon/fsdp
