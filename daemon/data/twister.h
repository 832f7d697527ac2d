/*
 * The state of the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998): the last 624 words of
 * its sequence, before tempering. Pure functions; any thread.
 */
#ifndef FSDPD_DATA_TWISTER_H
#define FSDPD_DATA_TWISTER_H

#include <stdint.h>

enum { TWISTER_WORDS = 624 };

/* Replaces the words by the next TWISTER_WORDS of the sequence. */
void twister_next(uint32_t *words);

/* The same `blocks` times, up to 2^64 / TWISTER_WORDS. It takes at most some milliseconds: where
 * many blocks are passed over, they are not computed. */
void twister_jump(uint32_t *words, uint64_t blocks);

#endif
