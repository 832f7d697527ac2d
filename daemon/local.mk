bin_PROGRAMS += fsdpd
fsdpd_SOURCES = %D%/fsdpd.c
fsdpd_LDADD = libbase.a
