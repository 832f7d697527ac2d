# common/rpc
