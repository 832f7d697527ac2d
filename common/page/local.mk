# Jobs as HTML: the page of http.listen, and what fsdpctl report writes.
noinst_LIBRARIES += libpage.a
libpage_a_CPPFLAGS = $(AM_CPPFLAGS) -I$(builddir)/common
libpage_a_SOURCES = \
  %D%/chart.c %D%/chart.h \
  %D%/html.c %D%/html.h \
  %D%/lists.c \
  %D%/page.c %D%/page.h \
  %D%/page_step.c \
  %D%/series.c %D%/series.h \
  %D%/timeline.c %D%/timeline.h
$(libpage_a_OBJECTS): $(PROTO_H)

# The page's files, as strings.
%D%/page_files.h: %D%/page.html %D%/page.css %D%/page.js %D%/embed.awk
	$(AM_V_GEN)$(MKDIR_P) $(@D) && for name in html css js; do \
	  LC_ALL=C $(AWK) -v name=page_$$name -f $(srcdir)/%D%/embed.awk $(srcdir)/%D%/page.$$name || exit 1; \
	done > $@
%D%/libpage_a-page.$(OBJEXT): %D%/page_files.h
CLEANFILES += %D%/page_files.h
EXTRA_DIST += %D%/page.html %D%/page.css %D%/page.js %D%/embed.awk
