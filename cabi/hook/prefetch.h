/*
 * Asking for a line of the cache before it is written. A ring's next entry was last read by
 * another processor: a plain prefetch brings the line but leaves it shared, and the store then
 * waits for the other copy to go, as does every locked instruction behind it. gcc emits
 * prefetchw for __builtin_prefetch only where it is told that the processor has it; those that
 * have not take it for a no-op.
 */
#ifndef PENSTOCK_PREFETCH_H
#define PENSTOCK_PREFETCH_H

static inline void psk_prefetch_to_write(const void *line) {
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}
#endif
