# Child processes on a uv loop. Programs that link it also link libbase.a and UV_LIBS.
noinst_LIBRARIES += libprocess.a
libprocess_a_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS)
libprocess_a_SOURCES = %D%/child.c %D%/child.h
