# daemon/train, and the program that draws digits to train on
noinst_PROGRAMS += fsdpd-digits
fsdpd_digits_SOURCES = examples/digits/draw.c
fsdpd_digits_LDADD = libbase.a -lm
