/* Libraries that are closed and opened again, as by a program that looks first whether they are there: what they export keeps its wrappers. */
#include "engine.h"

#include <link.h>

static void reload(const char *name, const char *symbol) {
    struct link_map *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    void *found = dlsym(library, symbol), *at = (void *)library->l_addr;
    CHECK(found);
    CHECK(!dlclose(library));
    mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0); /* if it went it comes back elsewhere */
    CHECK(dlsym(dlopen(name, RTLD_NOW | RTLD_LOCAL), symbol) == found);
}

int main(void) {
    start();
    reload("libnccl.so.2", "ncclAllReduce");
    reload("libcudart.so.99", "cudaGetDriverEntryPoint");
    return 0;
}
