# The units, the service's user and its directories. They go below the prefix, so that staged installs
# work; systemd reads those of /usr and /usr/local.
systemdunitdir = $(prefix)/lib/systemd/system
nodist_systemdunit_DATA = %D%/fsdpd.service %D%/fsdpd-worker@.service
dist_systemdunit_DATA = %D%/fsdpd.socket
sysusersdir = $(prefix)/lib/sysusers.d
dist_sysusers_DATA = %D%/sysusers.d/fsdpd.conf
tmpfilesdir = $(prefix)/lib/tmpfiles.d
dist_tmpfiles_DATA = %D%/tmpfiles.d/fsdpd.conf
EXTRA_DIST += %D%/fsdpd.service.in %D%/fsdpd-worker@.service.in
CLEANFILES += $(nodist_systemdunit_DATA)

$(nodist_systemdunit_DATA): %: $(srcdir)/%.in Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && sed 's|@bindir[@]|$(bindir)|' $(srcdir)/$@.in > $@
