/* A child forwards untouched, is refused an attach, and exits cleanly; also while other threads are in the hook. */
#include "engine.h"

static CUdeviceptr base;
static atomic_int stop;
static CUfunction empty_fn;

static int child(void) {
    psk_shared *(*attach_fn)(uint32_t) = (psk_shared * (*)(uint32_t)) dlsym(RTLD_DEFAULT, "penstock_hook_attach");
    if (attach_fn(PSK_HOOK_ABI)) return 10;
    if (S->mode != PSK_MODE_OFF || S->ring || S->block_slot) return 11;
    /* The driver is unusable after a fork; its refusals come through. */
    if (touch_add(NULL, base, 1, 1) != CUDA_ERROR_NOT_INITIALIZED) return 12;
    uint32_t out;
    if (CALL(cuMemcpyDtoH_v2, &out, base, U64(4)) != CUDA_ERROR_NOT_INITIALIZED) return 13;
    if (CALL(cuGraphLaunch, NULL, NULL) != CUDA_ERROR_NOT_INITIALIZED) return 14;
    if (CALL(cuStreamDestroy_v2, (CUstream)16) != CUDA_ERROR_NOT_INITIALIZED) return 15;
    if (CALL(cuModuleUnload, NULL) != CUDA_ERROR_NOT_INITIALIZED) return 16;
    /* Resolving still works, known or not. */
    void *p;
    int status;
    if (CALL(cuGetProcAddress_v2, "cuLaunchKernel", &p, 13000, U64(0), &status) || p != driver("cuLaunchKernel")) return 17;
    if (dlsym(libcuda, "cuMemcpyNothing")) return 18;
    char *m = malloc(100000);
    free(m);
    if (fork() == 0) _exit(attach_fn(PSK_HOOK_ABI) != NULL); /* a grandchild too */
    int st;
    wait(&st);
    return WIFEXITED(st) && WEXITSTATUS(st) == 0 ? 0 : 19;
}

static void *launcher(void *arg) {
    (void)arg;
    CUstream s = new_stream();
    launch_fn launch = (launch_fn)driver("cuLaunchKernel");
    while (!atomic_load(&stop)) {
        for (int i = 0; i < 50; i++) OK(launch(empty_fn, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
        __atomic_store_n(&S->tail, S->head, __ATOMIC_RELEASE);
        SYNC(s);
    }
    return NULL;
}

static void fork_once(void) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20); /* a hang is a failure, not a wait */
        _exit(child());
    }
    int st;
    CHECK_EQ(waitpid(pid, &st, 0), pid);
    if (!WIFEXITED(st) || WEXITSTATUS(st)) {
        fprintf(stderr, "child: exit %d, signal %d\n", WEXITSTATUS(st), WTERMSIG(st));
        exit(1);
    }
}

int main(void) {
    /* Before anything: such a child may use the driver, and the hook, itself. */
    pid_t pid = fork();
    if (pid == 0) {
        start();
        attach(PSK_MODE_OBSERVE);
        CUdeviceptr p = managed(2 * MiB);
        own(3, p, 2 * MiB, PSK_SLOT_RESIDENT);
        OK(touch_add(NULL, p, 1, 1));
        EXPECT(PSK_REC_LAUNCH, 3);
        SYNC(NULL);
        _exit(word_at(p) == 1 ? 0 : 1);
    }
    int st;
    waitpid(pid, &st, 0);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);

    start();
    attach(PSK_MODE_GATED);
    base = managed(2 * MiB);
    own(1, base, 2 * MiB, PSK_SLOT_RESIDENT);
    empty_fn = function("empty");
    OK(touch_add(NULL, base, 1, 1));
    SYNC(NULL);
    fork_once();
    pthread_t t[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, launcher, NULL));
    for (int i = 0; i < 20; i++) fork_once();
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    /* The parent goes on as before. */
    S->tail = S->head;
    OK(touch_add(NULL, base, 1, 1));
    EXPECT(PSK_REC_LAUNCH, 1);
    SYNC(NULL);
    CHECK_EQ(word_at(base), 2);
    return 0;
}
