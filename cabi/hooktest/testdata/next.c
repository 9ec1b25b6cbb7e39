/*
 * Who asks dlsym matters. This file is built three times: as the program, as
 * -DFIRST (an interposer, before) and as -DSECOND (what it interposes on).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(FIRST)
/* Asks for its successor: must never get itself. Also under a driver's name, which the hook wraps. */
int trap_value(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "trap_value");
    if ((void *)next == (void *)trap_value) return -1; /* would recurse */
    return next ? 10 + next() : -2;
}
int cuLaunchHostFunc(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuLaunchHostFunc");
    if ((void *)next == (void *)cuLaunchHostFunc) return -1;
    return next ? 10 + next() : -2;
}
int cuGraphLaunch(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuGraphLaunch");
    if ((void *)next == (void *)cuGraphLaunch) return -1;
    return next ? 10 + next() : -2;
}
#elif defined(SECOND)
int trap_value(void) { return 1; }
int cuLaunchHostFunc(void) { return 2; }
int cuGraphLaunch(void) { return 3; }
#elif defined(LOCAL)
/* Loaded with RTLD_LOCAL: RTLD_DEFAULT asked from here includes its own scope, and no one else's. */
int local_only(void) { return 4; }
int ask_default(void) {
    int (*f)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "local_only");
    return f ? f() : -1;
}
#else
int trap_value(void);
int cuLaunchHostFunc(void);
int cuGraphLaunch(void);

static int check(const char *what, int got, int want) {
    if (got != want) fprintf(stderr, "%s: %d, want %d\n", what, got, want);
    return got != want;
}

int main(void) {
    int bad = check("RTLD_NEXT from an interposer", trap_value(), 11);
    bad |= check("RTLD_NEXT of a driver name that is not wrapped", cuLaunchHostFunc(), 12);
    int (*first)(void) = (int (*)(void))dlsym(RTLD_NEXT, "trap_value");
    bad |= check("RTLD_NEXT from the program", first ? first() : -1, 11);
    void *local = dlopen("liblocal.so", RTLD_NOW | RTLD_LOCAL);
    if (!local) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*ask)(void) = (int (*)(void))dlsym(local, "ask_default");
    bad |= check("RTLD_DEFAULT from a local scope", ask ? ask() : -1, 4);
    bad |= check("RTLD_DEFAULT from the program sees no local scope", dlsym(RTLD_DEFAULT, "local_only") != NULL, 0);
    bad |= check("dlerror after a miss", dlerror() != NULL, 1);
    /* Another library's function under a wrapped name stays that library's. */
    int (*theirs)(void) = (int (*)(void))dlsym(dlopen("libfirst.so", RTLD_NOW | RTLD_NOLOAD), "cuGraphLaunch");
    bad |= check("RTLD_NEXT of a wrapped name from an interposer", theirs ? theirs() : -3, 13);
    return bad;
}
#endif
