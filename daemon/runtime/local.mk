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
  %D%/gloo_link.cc %D%/gloo_link.h \
  %D%/host_memory.c \
  %D%/lane_cpu.c \
  %D%/rendezvous.h

# What a program that uses libruntime.a links after it (with the C++ linker, for Gloo).
RUNTIME_LIBS = libruntime.a libkernels.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(GLOO_LIBS) -lm
