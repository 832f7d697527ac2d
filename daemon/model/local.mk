# daemon/model
