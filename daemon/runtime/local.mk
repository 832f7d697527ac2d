noinst_LIBRARIES += libruntime.a
libruntime_a_SOURCES = \
  %D%/comm.c %D%/comm.h \
  %D%/comm_gloo.c \
  %D%/comm_local.c \
  %D%/comm_table.h \
  %D%/device.c %D%/device.h \
  %D%/device_cpu.c \
  %D%/device_null.c \
  %D%/device_table.h \
  %D%/executor.c %D%/executor.h \
  %D%/gloo_link.cc %D%/gloo_link.h \
  %D%/host_memory.c \
  %D%/lane_cpu.c \
  %D%/rendezvous.h

# What a program that uses libruntime.a links after it.
RUNTIME_LIBS = libruntime.a libkernels.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(GLOO_LIBS) -lstdc++ -lm

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_device tests/unit/test_comm
TESTS += tests/unit/test_device tests/unit/test_comm

tests_unit_test_device_SOURCES = tests/unit/test_device.c
tests_unit_test_device_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_device_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)

tests_unit_test_comm_SOURCES = tests/unit/test_comm.c tests/engine/group.c tests/engine/group.h
tests_unit_test_comm_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_comm_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
endif
