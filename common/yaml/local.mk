# common/yaml
