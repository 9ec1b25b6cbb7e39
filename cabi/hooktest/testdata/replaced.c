/* A library that asks its runtime for a function goes, and another comes to lie where it was: it means its own runtime. */
#include "engine.h"

static void *(*load(const char *name, void **library))(void) {
    *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    CHECK(*library);
    return (void *(*)(void))dlsym(*library, "user_resolve");
}

int main(void) {
    void *library;
    start();
    CHECK(load("libuser.so", &library)());
    CHECK(!dlclose(library));
    CHECK(!load("libuser_refused.so", &library)()); /* the same code: its call returns to the same address, if it is given out again */
    return 0;
}
