# common/spec
