#!/bin/sh
# What the sources spell in one way: success, section marks, the number of an array's elements, tests, and
# variables of the environment.
cd "${srcdir:-.}" || exit 1
trees='common daemon client kernels bench tests'
status=0
refuse() { # what to write instead, then grep's options
  instead=$1
  shift
  if grep -rnE --include='*.[ch]' --include='*.cc' --include='*.cu' "$@" $trees; then
    echo "  $instead"
    status=1
  fi
}

refuse 'success is NULL' 'STATUS_OKAY'
refuse 'a section starts with /* ---- name ---- */' '^/\*+ *(-{1,3}|-{5,}|={2,}|#{2,}|\*{3,}) '
refuse 'the number of elements is COUNT_OF(array) of common/base/array.h' \
  'sizeof ([a-z_]+) */ *sizeof (\*\1|\1\[0\])'
refuse 'COUNT_OF is in common/base/array.h' --exclude=array.h 'define +[A-Z_]+\(array\)'
refuse 'tests register themselves, and tests/testing.c has their main: TEST(name) of tests/testing.h' \
  --exclude=testing.c --exclude=train_transformer.c --exclude=generate.c 'START_TEST|END_TEST|tcase_(add|create)|s(uite|runner)_create'
trees='common daemon client kernels'
refuse 'a variable of the environment is a row of common/base/switches.c, which switch_get reads' \
  'getenv\("(FSDPD|NCCL|CUDA)_'
[ $status = 0 ] && echo "one dialect"
exit $status
