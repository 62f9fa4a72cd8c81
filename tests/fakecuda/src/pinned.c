/* cuMemHostRegister: memory of the host that the driver page-locks (L1 to L3).
 *
 * Its pages are faulted in, and stay evictable here: whatever limits mlock does not limit the stand-in, as the
 * kernel module that NVIDIA publishes pins pages without a look at RLIMIT_MEMLOCK (os_lock_user_pages in
 * https://github.com/NVIDIA/open-gpu-kernel-modules/blob/1739a20efc4acb55fd1dc53dcc66057b70c2613c/kernel-open/nvidia/os-mlock.c). */
#include <errno.h>
#include <sys/mman.h>

#include "state.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
enum { PAGE = 4096, ALL_FLAGS = 15 };

CUresult impl_cuMemHostRegister(void *pointer, size_t nbytes, unsigned int flags) {
    const uintptr_t address = (uintptr_t)pointer, first = address / PAGE * PAGE;
    uint64_t pinned = 0;
    if (nbytes == 0 || nbytes > SIZE_MAX - address) return REFUSE("L1", "%zu bytes at %p", nbytes, pointer);
    if (flags > ALL_FLAGS) return REFUSE("L1", "flags are %#x", flags);
    for (int i = 0; i < g.pinned_count; i++) {
        if (address < g.pinned[i].address + g.pinned[i].nbytes && g.pinned[i].address < address + nbytes) {
            broke("L2", "%p is registered already", pointer);
            return HOST_MEMORY_ALREADY_REGISTERED;
        }
        pinned += g.pinned[i].nbytes;
    }
    if (g.pinned_count == MAX_PINNED || nbytes > g.settings.pin_limit - pinned) return OUT_OF_MEMORY;
    /* An older kernel does not know the advice: then nothing is faulted in. */
    if (madvise((void *)first, address + nbytes - first, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
        return REFUSE("P1", "the host address %p cannot be read or written", pointer);
    g.pinned[g.pinned_count++] = (struct pinned){address, nbytes};
    return OK;
}

CUresult impl_cuMemHostUnregister(void *pointer) {
    for (int i = 0; i < g.pinned_count; i++) {
        if (g.pinned[i].address != (uintptr_t)pointer) continue;
        g.pinned[i] = g.pinned[--g.pinned_count];
        return OK;
    }
    broke("L3", "%p is not the first address of what is registered", pointer);
    return HOST_MEMORY_NOT_REGISTERED;
}
