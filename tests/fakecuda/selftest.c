/* Drive the stand-in from C, alone and from many threads, for a run under the sanitizers.
 *
 * It is linked with the stand-in itself and, like the bindings, gets every function from cuGetProcAddress_v2.
 * Exit status 0: every expectation held, nothing was left over and no rule was broken unexpectedly. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status);
size_t fakecuda_report(char *out, size_t room);
int fakecuda_reset(const char *settings, char *why, size_t why_bytes);
int fakecuda_fail(const char *faults, char *why, size_t why_bytes);
void fakecuda_forgive(void);

#define CALL(name, needs, target, parameters, arguments) static CUresult(*name) parameters;
#include "calls.def"
#undef CALL

#define EXPECT(wanted, call)                                                                        \
    do {                                                                                            \
        CUresult got = (call);                                                                      \
        if (got != (wanted)) {                                                                      \
            fprintf(stderr, "line %d: %s gave %d, not %d\n", __LINE__, #call, got, (wanted));       \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

enum { GRANULE = 65536, THREADS = 4, ROUNDS = 60, GRANULES = 8 };

static void bind_all(void) {
#define CALL(name, needs, target, parameters, arguments) EXPECT(OK, cuGetProcAddress_v2(#name, (void **)&name, 13000, 0, NULL));
#include "calls.def"
#undef CALL
}

static void restart(const char *settings) {
    char why[400];
    if (fakecuda_reset(settings, why, sizeof why) != 0) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    EXPECT(OK, cuInit(0));
}

static void expect_in_report(const char *text) {
    char report[32768];
    fakecuda_report(report, sizeof report);
    if (strstr(report, text) == NULL) {
        fprintf(stderr, "no %s in %s\n", text, report);
        exit(1);
    }
}

static void expect_clean(void) {
    expect_in_report("\"violation_count\": 0");
    expect_in_report("\"reservations\": 0, \"reserved_bytes\": 0, \"mappings\": 0, \"handles\": 0");
    expect_in_report("\"physical_bytes\": 0, \"context_refs\": 0, \"streams\": 0, \"events\": 0");
}

static const CUprop prop = {.type = PINNED, .handle_types = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
static const CUaccess access_all = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READWRITE};

static void commit(CUdeviceptr address, int count) {
    for (int i = 0; i < count; i++) {
        CUhandle handle;
        EXPECT(OK, cuMemCreate(&handle, GRANULE, &prop, 0));
        EXPECT(OK, cuMemMap(address + (CUdeviceptr)i * GRANULE, GRANULE, 0, handle, 0));
        EXPECT(OK, cuMemRelease(handle));
    }
    EXPECT(OK, cuMemSetAccess(address, (size_t)count * GRANULE, &access_all, 1));
}

/* One worker: its own reservation and stream, the shared device, context and tables. */
static void *work(void *argument) {
    const size_t nbytes = (size_t)GRANULES * GRANULE;
    unsigned char seed = (unsigned char)(uintptr_t)argument;
    unsigned char *host = malloc(nbytes);
    CUcontext context;
    CUdeviceptr base;
    CUstream stream;
    CUevent event;
    if (host == NULL) exit(1);
    EXPECT(OK, cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(OK, cuCtxSetCurrent(context));
    EXPECT(OK, cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    EXPECT(OK, cuEventCreate(&event, 0));
    EXPECT(OK, cuMemAddressReserve(&base, nbytes, 0, 0, 0));
    for (int round = 0; round < ROUNDS; round++) {
        commit(base, GRANULES);
        EXPECT(OK, cuMemsetD8Async(base, seed, nbytes, stream));
        EXPECT(OK, cuEventRecord(event, stream));
        EXPECT(OK, cuEventSynchronize(event));
        EXPECT(OK, cuMemcpyDtoH(host, base, nbytes));
        for (size_t i = 0; i < nbytes; i++)
            if (host[i] != seed) exit(1);
        EXPECT(OK, cuMemUnmap(base, nbytes));
    }
    EXPECT(OK, cuMemAddressFree(base, nbytes));
    EXPECT(OK, cuEventDestroy(event));
    EXPECT(OK, cuStreamDestroy(stream));
    EXPECT(OK, cuDevicePrimaryCtxRelease(0));
    free(host);
    return NULL;
}

static void many_threads(void) {
    pthread_t threads[THREADS];
    restart("GRANULARITY=64KiB\nBUSY_MS=1");
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0) exit(1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    expect_clean();
}

static void bad_arguments(void) {
    CUdeviceptr base = 0, ignored;
    CUcontext context;
    CUhandle handle, copy;
    char byte = 0, *nowhere = NULL;
    restart("GRANULARITY=64KiB\nPOISON=0xA5\nMEMORY=1MiB");
    EXPECT(OK, cuMemAddressReserve(&base, 4 * GRANULE, 0, 0, 0));
    commit(base, 2);
    EXPECT(INVALID_CONTEXT, cuMemcpyDtoH(&byte, base, 1));
    EXPECT(OK, cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(OK, cuCtxSetCurrent(context));
    EXPECT(OK, cuMemcpyDtoH(&byte, base, 1));
    if ((unsigned char)byte != 0xA5) exit(1);
    expect_in_report("\"violation_count\": 0");
    EXPECT(INVALID_VALUE, cuMemcpyDtoH(nowhere, base, 1));
    EXPECT(INVALID_VALUE, cuMemcpyHtoD(base, nowhere + 1, GRANULE));
    EXPECT(INVALID_VALUE, cuMemcpyDtoH(&byte, base, (size_t)-1));
    EXPECT(INVALID_VALUE, cuMemsetD32(base, 0, (size_t)-1 / 2));
    EXPECT(INVALID_VALUE, cuMemcpyDtoD(base, base + 1, GRANULE));
    EXPECT(INVALID_VALUE, cuMemUnmap(base, (size_t)-GRANULE));
    EXPECT(INVALID_VALUE, cuMemUnmap(base, 3 * GRANULE));
    EXPECT(INVALID_VALUE, cuMemAddressFree(base, 4 * GRANULE));
    EXPECT(INVALID_VALUE, cuMemAddressReserve(&ignored, 4 * GRANULE, 3, 0, 0));
    EXPECT(OUT_OF_MEMORY, cuMemAddressReserve(&ignored, (size_t)1 << 62, 0, 0, 0));
    EXPECT(OUT_OF_MEMORY, cuMemCreate(&handle, 16 * GRANULE, &prop, 0));
    EXPECT(INVALID_VALUE, cuMemRelease(0));
    EXPECT(INVALID_VALUE, cuMemRelease(~0ull));
    EXPECT(INVALID_HANDLE, cuStreamSynchronize(1234));
    EXPECT(INVALID_HANDLE, cuEventQuery(0));

    int fd = -1;
    EXPECT(OK, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)base));
    EXPECT(OK, cuMemExportToShareableHandle(&fd, handle, HANDLE_POSIX_FD, 0));
    EXPECT(OK, cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, HANDLE_POSIX_FD));
    EXPECT(OK, cuMemRelease(handle));
    EXPECT(OK, cuMemMap(base + 2 * GRANULE, GRANULE, 0, copy, 0));
    EXPECT(OK, cuMemRelease(copy));
    EXPECT(INVALID_VALUE, cuMemRelease(copy));
    close(fd);
    EXPECT(OK, cuCtxSynchronize());
    EXPECT(OK, cuMemUnmap(base, 3 * GRANULE));
    EXPECT(OK, cuMemAddressFree(base, 4 * GRANULE));
    EXPECT(OK, cuDevicePrimaryCtxRelease(0));
    EXPECT(CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    fakecuda_forgive();
    expect_clean();
}

/* A reset in the middle of everything frees it all; the leak checker would see the rest. */
static void reset_drops_everything(void) {
    CUdeviceptr base;
    CUcontext context;
    CUstream stream;
    CUhandle handle;
    char why[400];
    restart("GRANULARITY=64KiB");
    /* ThreadSanitizer leaves about 1.5 TiB of addresses. */
    EXPECT(OK, cuMemAddressReserve(&base, (size_t)1 << 36, 0, 0, 0));
    commit(base, GRANULES);
    EXPECT(OK, cuMemCreate(&handle, GRANULE, &prop, 0));
    EXPECT(OK, cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(OK, cuCtxPushCurrent(context));
    EXPECT(OK, cuStreamCreate(&stream, 0));
    EXPECT(OK, cuMemsetD8Async(base, 1, GRANULE, stream));
    restart("");
    EXPECT(INVALID_CONTEXT, cuCtxSynchronize());
    expect_clean();
    if (fakecuda_reset("DEVICES=1\nNONSENSE=1", why, sizeof why) == 0) exit(1);
    if (fakecuda_fail("cuInit:1=700", why, sizeof why) != 0) exit(1);
    EXPECT(ILLEGAL_ADDRESS, cuInit(0));
    restart("");
}

int main(void) {
    bind_all();
    bad_arguments();
    many_threads();
    reset_drops_everything();
    puts("ok");
    return 0;
}
