/* What every file stands on: the state that the hook shares with the engine, and whose a call is. */
#ifndef PENSTOCK_HOOK_SHARED_H
#define PENSTOCK_HOOK_SHARED_H
#ifndef __x86_64__
#error "libpenstock_hook supports x86-64 Linux only: the dlsym tail jump is written for it"
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "penstock_hook.h"

#define PSK_LIKELY(x) __builtin_expect(!!(x), 1)
#define PSK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PSK_EXPORT __attribute__((visibility("default")))
/* Preloaded, so the static thread block has room for a few words. */
#define PSK_TLS static __thread __attribute__((tls_model("initial-exec")))

extern psk_shared psk_S;
extern atomic_int psk_child; /* 1 in a forked child of an attached process */

/* The contract's fields are plain integers that both sides access atomically. */
#define PSK_LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define PSK_COUNT(field) __atomic_fetch_add(&(field), 1, __ATOMIC_RELAXED)

/* True when this call is a probe of the self-test: counted, and not to be forwarded. */
bool psk_probe(void);

extern __thread int psk_in_hook __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* True when this call is to be recorded. Inside the driver, or the engine, it is not. */
static inline bool psk_active(void) {
    return PSK_LOAD(psk_S.mode) != PSK_MODE_OFF && !psk_in_hook;
}
#endif
