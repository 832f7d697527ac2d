# Debian packages of the release tarball, in deb/. Needs debhelper (apt-get install debhelper), and says
# what else is missing.
EXTRA_DIST += %D%/changelog %D%/control %D%/copyright %D%/fsdpctl.install %D%/fsdpd-cuda.install %D%/fsdpd.install \
  %D%/fsdpd.postinst %D%/fsdpd.postrm %D%/rules %D%/source/format

if HAVE_CUDA
DEB_CUDA = DEB_BUILD_PROFILES=pkg.fsdpd.cuda \
  FSDPD_CUDA_CONFIGURE="--with-cuda=$(NVCC:/bin/nvcc=) --with-cuda-arch=$(with_cuda_arch)"
endif

deb: dist
	rm -rf deb && $(MKDIR_P) deb/build && tar -C deb/build -xf $(distdir).tar.xz
	cd deb/build/$(distdir) && $(DEB_CUDA) DEB_BUILD_OPTIONS="nocheck parallel=$$(nproc) $(DEB_OPTIONS)" \
	  dpkg-buildpackage --build=binary --no-sign >../../build.log 2>&1 || \
	  { tail -n 30 ../../build.log; exit 1; }
	mv deb/build/*.deb deb/build/*.changes deb/build/*.buildinfo deb/ && rm -rf deb/build
	@ls deb/*.deb
.PHONY: deb
distclean-local:
	rm -rf deb
	test ! -L families || rm families # the link that configure makes in a build directory
