/*
 * The exported names, found by programs linked against libcuda. Each jumps to
 * its wrapper and, the first time, counts in route_elf. They are distinct from
 * the wrappers that the resolvers hand out so that the route can be told.
 * Assembly, because a name must forward any signature untouched.
 */
#include "linked.h"
#include "real.h"

/* Offset of route_elf in psk_shared, as assembly cannot ask for it. */
#define ROUTE_ELF 288
_Static_assert(offsetof(psk_shared, route_elf) == ROUTE_ELF, "route_elf moved: correct ROUTE_ELF");

#define STR2(x) #x
#define STR(x) STR2(x)

#define PSK_SYM(name, base, since, ptsz)                  \
    asm(".text\n"                                         \
        ".p2align 4\n"                                    \
        ".globl " #name "\n"                              \
        ".type " #name ", @function\n"                    \
        ".globl psk_elf_" #name "\n"                      \
        ".hidden psk_elf_" #name "\n" #name ":\n"         \
        "psk_elf_" #name ":\n"                            \
        ".cfi_startproc\n"                                \
        "endbr64\n"                                       \
        "cmpb $0, .Lseen_" #name "(%rip)\n"               \
        "je 2f\n"                                         \
        "1: jmp psk_w_" #name "\n"                        \
        "2: movb $1, .Lseen_" #name "(%rip)\n"            \
        "lock incq psk_S+" STR(ROUTE_ELF) "(%rip)\n"      \
        "jmp 1b\n"                                        \
        ".cfi_endproc\n"                                  \
        ".size " #name ", . - " #name "\n"                \
        ".local .Lseen_" #name "\n"                       \
        ".comm .Lseen_" #name ",1,1\n");
#include "symbols.def"
#undef PSK_SYM

#define PSK_SYM(name, base, since, ptsz) extern char psk_elf_##name[];
#include "symbols.def"
#undef PSK_SYM

bool psk_linked_export(int row, const void *p) {
    static void *const exported[PSK_ROWS] = {
#define PSK_SYM(name, base, since, ptsz) psk_elf_##name,
#include "symbols.def"
#undef PSK_SYM
    };
    return row >= 0 && p == exported[row];
}
