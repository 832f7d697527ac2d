/*
 * Numbers of Muon, for all devices: an iteration is a x + (b g + c g g) x with g = x x', or with
 * g = x' x from the right if that is smaller, of a matrix over its norm, which is at least eps.
 */
#ifndef FSDPD_KERNELS_MUON_H
#define FSDPD_KERNELS_MUON_H

#define KERNEL_MUON_A 3.4445F
#define KERNEL_MUON_B (-4.7750F)
#define KERNEL_MUON_C 2.0315F
#define KERNEL_MUON_EPS 1e-7F

#endif
