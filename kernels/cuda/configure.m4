# Searches for CUDA, cuDNN and NCCL in the directories of --with-cuda, --with-cudnn and --with-nccl, else
# next to nvcc and in the compiler's default paths. A directory may be an installation (include, lib64),
# or the directory "nvidia" of Python's wheels (nvidia/cudnn/include, nvidia/cu13/lib, ...).
#
# FSDPD_CUDA_FIND(NAME, HEADER, LIBRARY, DIRECTORIES): sets NAME_INCLUDE and NAME_FILE, or leaves them empty.
AC_DEFUN([FSDPD_CUDA_FIND], [
  $1_INCLUDE= $1_FILE=
  for fsdpd_dir in $4; do
    for fsdpd_root in "$fsdpd_dir" "$fsdpd_dir"/targets/x86_64-linux "$fsdpd_dir"/*/; do
      fsdpd_root=${fsdpd_root%/}
      if test -z "$$1_INCLUDE" && test -f "$fsdpd_root/include/$2"; then $1_INCLUDE=$fsdpd_root/include; fi
      for fsdpd_lib in "$fsdpd_root"/lib64 "$fsdpd_root"/lib "$fsdpd_root"/lib/x86_64-linux-gnu; do
        for fsdpd_file in "$fsdpd_lib"/lib$3.so "$fsdpd_lib"/lib$3.so.*; do
          if test -z "$$1_FILE" && test -f "$fsdpd_file"; then $1_FILE=$fsdpd_file; fi
        done
      done
    done
  done
])

AC_DEFUN([FSDPD_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
    [build the CUDA backend (default: if nvcc is found)])], [], [with_cuda=check])
  AC_ARG_WITH([cudnn], [AS_HELP_STRING([--with-cudnn@<:@=DIR@:>@],
    [let it use cuDNN (default: if it is found)])], [], [with_cudnn=check])
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@],
    [let it use NCCL (default: if it is found)])], [], [with_nccl=check])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST],
    [compute capabilities to build for, the last also as PTX (default: 80,90)])], [], [with_cuda_arch=80,90])

  # Builds for sanitizers and fuzzers omit CUDA unless it is requested: nvcc and its tests take minutes.
  if test "$with_cuda" = check && test "$enable_sanitizers$enable_fuzzers" != nono; then
    with_cuda=no
  fi
  have_cuda=no cuda_said= CUDA_RPATH=
  if test "$with_cuda" != no; then
    fsdpd_given=
    case $with_cuda in yes|check) ;; *) fsdpd_given=$with_cuda ;; esac
    NVCC=
    for fsdpd_bin in ${fsdpd_given:+"$fsdpd_given"/bin "$fsdpd_given"/*/bin}; do
      if test -z "$NVCC" && test -x "$fsdpd_bin/nvcc"; then NVCC=$fsdpd_bin/nvcc; fi
    done
    AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin:/opt/cuda/bin])
    fsdpd_home=
    if test -n "$NVCC"; then fsdpd_home=`readlink -f "$NVCC"`; fsdpd_home=${fsdpd_home%/bin/nvcc}; fi
    FSDPD_CUDA_FIND([CUDART], [cuda_runtime_api.h], [cudart], [$fsdpd_given $fsdpd_home /usr/local /usr])
    FSDPD_CUDA_FIND([CUBLASLT], [cublasLt.h], [cublasLt], [$fsdpd_given $fsdpd_home /usr/local /usr])
    if test -z "$NVCC"; then cuda_said="nvcc was not found"
    elif test -z "$CUDART_INCLUDE" || test -z "$CUDART_FILE"; then cuda_said="the CUDA runtime was not found"
    elif test -z "$CUBLASLT_INCLUDE" || test -z "$CUBLASLT_FILE"; then cuda_said="cuBLASLt was not found"
    else have_cuda=yes
    fi
    if test $have_cuda = no && test "$with_cuda" != check; then AC_MSG_ERROR([--with-cuda: $cuda_said]); fi
  fi

  CUDNN_CPPFLAGS= CUDNN_LIBS= NCCL_CPPFLAGS= NCCL_LIBS=
  if test $have_cuda = yes; then
    CUDA_CPPFLAGS="-isystem $CUDART_INCLUDE -isystem $CUBLASLT_INCLUDE"
    CUDA_LIBS="$CUDART_FILE $CUBLASLT_FILE"
    fsdpd_dirs=`dirname $CUDART_FILE`:`dirname $CUBLASLT_FILE`
    m4_foreach([FSDPD_PART], [[cudnn], [nccl]], [
      if test "$with_[]FSDPD_PART" != no; then
        fsdpd_place=
        case $with_[]FSDPD_PART in yes|check) ;; *) fsdpd_place=$with_[]FSDPD_PART ;; esac
        FSDPD_CUDA_FIND([FOUND], FSDPD_PART[.h], FSDPD_PART, [$fsdpd_place $fsdpd_given $fsdpd_home /usr/local /usr])
        fsdpd_found="it was not found"
        if test FSDPD_PART = cudnn && test -n "$FOUND_INCLUDE"; then
          fsdpd_version=
          for fsdpd_name in MAJOR MINOR; do
            fsdpd_number=`sed -n "s/^#define CUDNN_$fsdpd_name  *//p" "$FOUND_INCLUDE"/cudnn_version.h "$FOUND_INCLUDE"/cudnn.h 2>/dev/null | sed 1q`
            fsdpd_version="$fsdpd_version${fsdpd_version:+.}${fsdpd_number:-0}"
          done
          if test "${fsdpd_version%.*}" -lt 9 || { test "${fsdpd_version%.*}" -eq 9 && test "${fsdpd_version@%:@*.}" -lt 8; }; then
            fsdpd_found="cuDNN 9.8 or later is needed; what is in $FOUND_INCLUDE is cuDNN $fsdpd_version"
            AC_MSG_WARN([$fsdpd_found])
            FOUND_INCLUDE=
          fi
        fi
        if test -n "$FOUND_INCLUDE" && test -n "$FOUND_FILE"; then
          m4_toupper(FSDPD_PART)_CPPFLAGS="-DFSDPD_HAVE_[]m4_toupper(FSDPD_PART)"
          m4_toupper(FSDPD_PART)_LIBS=$FOUND_FILE
          # Before the toolkit's directories, which may have another version of it.
          test "$FOUND_INCLUDE" = /usr/include || CUDA_CPPFLAGS="-isystem $FOUND_INCLUDE $CUDA_CPPFLAGS"
          fsdpd_dirs="`dirname $FOUND_FILE`:$fsdpd_dirs"
        elif test "$with_[]FSDPD_PART" != check; then
          AC_MSG_ERROR([--with-]FSDPD_PART[: $fsdpd_found])
        fi
      fi])
    CUDA_RPATH="-Wl,-rpath,$fsdpd_dirs"
    CUDA_ARCH_FLAGS=
    for fsdpd_arch in `echo $with_cuda_arch | tr , ' '`; do
      CUDA_ARCH_FLAGS="$CUDA_ARCH_FLAGS -gencode arch=compute_$fsdpd_arch,code=sm_$fsdpd_arch"
      fsdpd_last=$fsdpd_arch
    done
    CUDA_ARCH_FLAGS="$CUDA_ARCH_FLAGS -gencode arch=compute_$fsdpd_last,code=compute_$fsdpd_last"
    AC_MSG_NOTICE([CUDA backend: $NVCC for $with_cuda_arch, cuDNN ${CUDNN_LIBS:-not found}, NCCL ${NCCL_LIBS:-not found}])
  else
    AC_MSG_NOTICE([no CUDA backend: ${cuda_said:-switched off}])
  fi
  AC_SUBST([NVCC])
  AC_SUBST([with_cuda_arch])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AC_SUBST([CUDA_RPATH])
  AC_SUBST([CUDA_ARCH_FLAGS])
  AC_SUBST([CUDNN_CPPFLAGS])
  AC_SUBST([CUDNN_LIBS])
  AC_SUBST([NCCL_CPPFLAGS])
  AC_SUBST([NCCL_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
  AM_CONDITIONAL([HAVE_CUDNN], [test -n "$CUDNN_LIBS"])
  AM_CONDITIONAL([HAVE_NCCL], [test -n "$NCCL_LIBS"])
])
