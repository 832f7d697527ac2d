# daemon/coordinator
